/* The calculator page: a form of sliders above the table, which follows them. The table stands there without this
   script too, for one model; formulas are in ledger.js. */
document.addEventListener("DOMContentLoaded", () => {
  const box = document.querySelector(".calculator");
  if (!box) return;
  const { presets, model, short, long } = JSON.parse(box.querySelector('script[type="application/json"]').textContent);
  const table = box.querySelector("table");

  // --- numbers as text, as in book/_ext/course/calculator.py ---
  const digits = (value) => ledger.fixed(value, value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0);
  const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [0, ""]];
  const flop = (count) => {
    const [scale, prefix] = PREFIXES.find(([least]) => Number(count) >= least);
    return `${digits(Number(count) / (scale || 1))} ${prefix}FLOP`;
  };
  const UNITS = [["G", 2 ** 30, 1e9], ["M", 2 ** 20, 1e6], ["K", 2 ** 10, 1e3]];
  const size = (count) => {
    const found = UNITS.find(([, binary]) => Number(count) >= binary);
    if (!found) return `${count} B`;
    const [unit, binary, decimal] = found;
    return `${digits(Number(count) / binary)} ${unit}iB (${digits(Number(count) / decimal)} ${unit.replace("K", "k")}B)`;
  };
  const whole = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");
  const growth = (ratio) => `× ${ledger.fixed(ratio, 3).replace(/\.?0+$/, "")}`;
  const percent = (value, places) => `${ledger.fixed(100 * value, places)}%`;

  const rows = (config, tokens, batch, dtype) => {
    const full = ledger.flops(config, tokens, "prefill", false, "last", batch);
    const causal = ledger.flops(config, tokens, "prefill", true, "last", batch);
    const step = ledger.flops(config, tokens, "decode", false, "last", batch);
    const scores = ledger.scores(config, tokens, batch, dtype);
    const cache = ledger.kvCache(config, tokens, batch, dtype);
    const norms = ledger.norms(config, tokens, batch, dtype);
    const count = ledger.parameters(config).total;
    const weights = count * ledger.DTYPES[dtype];
    const separate = norms.fused.bytes + norms.adds.bytes;
    return [
      [count, whole(count)],
      [norms.parameters, whole(norms.parameters)],
      [weights, size(weights)],
      [cache.total, size(cache.total)],
      [scores.layer_bytes, size(scores.layer_bytes)],
      [full.matrices, flop(full.matrices)],
      [null, percent(full.attention_share, 2)],
      [causal.matrices, flop(causal.matrices)],
      [null, percent(causal.attention_share, 2)],
      [full.norms, flop(full.norms)],
      [null, percent(full.norm_share, 4)],
      [step.matrices, flop(step.matrices)],
      [norms.eager.bytes, size(norms.eager.bytes)],
      [norms.fused.bytes, size(norms.fused.bytes)],
      [separate, size(separate)],
      [norms.fused_add.bytes, size(norms.fused_add.bytes)],
      [norms.eager.launches, whole(norms.eager.launches)],
      [norms.fused.launches, whole(norms.fused.launches)],
      [norms.kept_inputs, size(norms.kept_inputs)],
    ];
  };

  // --- the form ---
  const divisors = (n) => Array.from({ length: n }, (_, i) => i + 1).filter((i) => n % i === 0);
  const range = (from, to, step) => Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => from + i * step);
  const CONTEXTS = range(8, 20, 1).flatMap((k) => (k < 20 ? [2 ** k, 3 * 2 ** (k - 1)] : [2 ** k]));
  const WIDTHS = range(128, 16384, 128);
  const form = document.createElement("form");
  form.addEventListener("submit", (event) => event.preventDefault());

  const field = (name, control) => {
    const label = document.createElement("label");
    const title = document.createElement("span");
    const shown = document.createElement("output");
    title.textContent = name;
    control.setAttribute("aria-label", name);
    label.append(title, control, shown);
    form.append(label);
    return { control, shown };
  };
  const choice = (name, options) => {
    const select = document.createElement("select");
    for (const option of options) select.add(new Option(option, option));
    return field(name, select);
  };
  /* A slider over a list of values; the list may change. */
  const slider = (name) => {
    const control = document.createElement("input");
    Object.assign(control, { type: "range", min: 0, step: 1 });
    const { shown } = field(name, control);
    const me = {
      control,
      values: [],
      get value() {
        return me.values[+control.value];
      },
      set(values, value) {
        me.values = values;
        control.max = values.length - 1;
        const at = values.findIndex((v) => v >= value);
        control.value = at < 0 ? values.length - 1 : at;
        me.show();
      },
      show() {
        shown.textContent = whole(me.value);
        control.setAttribute("aria-valuetext", whole(me.value));
      },
    };
    return me;
  };
  const models = choice("model", Object.keys(presets));
  const dtypes = choice("numbers", Object.keys(ledger.DTYPES));
  const context = slider("context");
  const batch = slider("sequences");
  const layers = slider("layers");
  const width = slider("width");
  const heads = slider("heads");
  const kvHeads = slider("KV heads");
  const note = document.createElement("p");
  const summary = document.createElement("output");
  summary.className = "calculator-summary";
  note.className = "calculator-note";
  form.append(note, summary);

  /* The preset with the sliders' sizes: heads keep the preset's share of the width, the MLP its ratio to the width. */
  const config = () => {
    const base = presets[models.control.value];
    const own = base.head_dim * base.heads !== base.width;
    const windows = base.windows && range(0, layers.value - 1, 1).map((i) => base.windows[i % base.layers]);
    return {
      ...base,
      layers: layers.value,
      width: width.value,
      heads: heads.value,
      kv_heads: kvHeads.value,
      head_dim: own ? base.head_dim : width.value / heads.value,
      mlp_width: Math.round((base.mlp_width * width.value) / base.width),
      windows,
    };
  };
  const headChoices = () => {
    const base = presets[models.control.value];
    const own = base.head_dim * base.heads !== base.width;
    return own ? range(1, 128, 1) : divisors(width.value).filter((n) => n <= 128);
  };
  const show = () => {
    const c = config();
    const sequences = batch.value;
    const dtype = dtypes.control.value;
    const [one, other] = [short, context.value].map((tokens) => rows(c, tokens, sequences, dtype));
    const changed = ["layers", "width", "heads", "kv_heads"].some((name) => c[name] !== presets[models.control.value][name]);
    const title = `${models.control.value}${changed ? ", changed" : ""}, ${dtype}, ${sequences === 1 ? "one sequence" : `${sequences} sequences`}`;
    table.caption.textContent = title;
    table.tHead.rows[0].cells[2].textContent = `${whole(context.value)} tokens`;
    [...table.tBodies[0].rows].forEach((row, i) => {
      const [a, b] = [one[i][0], other[i][0]];
      row.cells[1].textContent = one[i][1];
      row.cells[2].textContent = other[i][1];
      row.cells[3].textContent = a === null ? "" : growth(Number(b) / Number(a));
    });
    note.textContent =
      `Head size ${whole(c.head_dim)}, MLP ${whole(c.mlp_width)} wide` +
      (c.windows ? `, windows of ${[...new Set(c.windows.filter((w) => w !== null))].map(whole)} tokens` : "") + ".";
    summary.textContent =
      `${whole(context.value)} tokens: KV cache ${other[3][1]}, prefill ${other[5][1]}, norms ${other[10][1]} of it.`;
  };
  const load = () => {
    const base = presets[models.control.value];
    layers.set(range(1, 128, 1), base.layers);
    width.set(WIDTHS, base.width);
    heads.set(headChoices(), base.heads);
    kvHeads.set(divisors(heads.value), base.kv_heads);
    show();
  };
  models.control.value = model;
  dtypes.control.value = "bfloat16";
  context.set(CONTEXTS, long);
  batch.set(range(0, 8, 1).map((k) => 2 ** k), 1);
  models.control.addEventListener("change", load);
  dtypes.control.addEventListener("change", show);
  for (const each of [context, batch, layers]) each.control.addEventListener("input", () => (each.show(), show()));
  width.control.addEventListener("input", () => {
    width.show();
    heads.set(headChoices(), heads.value);
    kvHeads.set(divisors(heads.value), kvHeads.value);
    show();
  });
  heads.control.addEventListener("input", () => {
    heads.show();
    kvHeads.set(divisors(heads.value), kvHeads.value);
    show();
  });
  kvHeads.control.addEventListener("input", () => (kvHeads.show(), show()));
  load();
  box.prepend(form);
});
