/* The formulas of normlab.ledger for the calculator page: same names, same numbers (a test compares them on many
   configurations). Whole numbers are BigInt, since operations pass 2^53. */
const ledger = (() => {
  const DTYPES = { float32: 4n, bfloat16: 2n, float16: 2n, float8: 1n, int8: 1n };
  const NORMS_PER_BLOCK = { pre: 2n, post: 2n, peri: 4n, output: 2n, parallel: 1n };
  const SAVED = { pre: 1n, parallel: 3n, post: 2n, peri: 2n, output: 2n };
  const least = (a, b) => (a < b ? a : b);
  const share = (part, whole) => Number(part) / Number(whole);

  /* The sizes of a configuration as BigInt, with the features of all query heads and of all key heads. */
  const read = (config) => {
    const c = { ...config };
    for (const [name, value] of Object.entries(config)) if (typeof value === "number") c[name] = BigInt(value);
    const windows = config.windows ?? Array(config.layers).fill(null);
    return {
      ...c,
      queries: c.heads * c.head_dim,
      keys: c.kv_heads * c.head_dim,
      windows: windows.map((window) => (window === null ? null : BigInt(window))),
    };
  };

  /* How many vectors of one token each kind of norm takes, their features, and how many such norms there are. */
  const normShapes = (c) => {
    const count = c.layers * NORMS_PER_BLOCK[c.placement] + (c.final_norm ? 1n : 0n);
    const stream = { vectors: 1n, features: c.width, count };
    if (c.qk_norm === "none") return [stream];
    const joint = c.qk_norm === "joint";
    const [q, k] = joint ? [[1n, c.queries], [1n, c.keys]] : [[c.heads, c.head_dim], [c.kv_heads, c.head_dim]];
    const inside = [q, k].map(([vectors, features]) => ({ vectors, features, count: c.layers }));
    return [stream, ...inside];
  };
  const total = (shapes, value) => shapes.reduce((sum, shape) => sum + shape.count * value(shape), 0n);
  const normParameters = (c) => (c.norm === "rmsnorm" ? 1n : 2n) * total(normShapes(c), (s) => s.features);

  const parameters = (config) => {
    const c = read(config);
    let attention = 2n * c.width * (c.queries + c.keys);
    let mlp = (c.gated ? 3n : 2n) * c.width * c.mlp_width;
    if (c.bias) {
      attention += c.queries + 2n * c.keys + c.width;
      mlp += (c.gated ? 2n : 1n) * c.mlp_width + c.width;
    }
    const embedding = c.vocab_size * c.width;
    const parts = {
      embedding,
      positions: c.positions * c.width,
      attention: c.layers * attention,
      mlp: c.layers * mlp,
      norms: normParameters(c),
      head: c.tied_head ? 0n : embedding,
    };
    return { ...parts, total: Object.values(parts).reduce((a, b) => a + b) };
  };

  const pairs = (tokens, window, phase, causal) => {
    const seen = window === null ? tokens : least(tokens, window);
    if (phase === "decode") return seen;
    return causal ? (seen * (seen + 1n)) / 2n + (tokens - seen) * seen : tokens * tokens;
  };
  const normFlops = (norm, features) => (norm === "rmsnorm" ? 4n : 7n) * features + 2n;

  const flops = (config, tokens, phase = "prefill", causal = false, head = "last", batch = 1) => {
    const c = read(config);
    const [t, b] = [BigInt(tokens), BigInt(batch)];
    const rows = b * (phase === "prefill" ? t : 1n);
    const positions = { last: b, all: rows, none: 0n }[head];
    const matrices = 2n * c.width * (c.queries + c.keys) + (c.gated ? 3n : 2n) * c.width * c.mlp_width;
    const seen = c.windows.reduce((sum, window) => sum + pairs(t, window, phase, causal), 0n);
    const linear = 2n * rows * c.layers * matrices;
    const attention = 4n * b * seen * c.queries;
    const logits = 2n * positions * c.vocab_size * c.width;
    const norms = rows * total(normShapes(c), (s) => s.vectors * normFlops(c.norm, s.features));
    const all = linear + attention + logits;
    return {
      linear,
      attention,
      head: logits,
      norms,
      matrices: all,
      attention_share: share(attention, all),
      norm_share: share(norms, all),
    };
  };

  const scores = (config, tokens, batch = 1, dtype = "bfloat16", causal = false, softmaxCopy = false) => {
    const c = read(config);
    const t = BigInt(tokens);
    const each = DTYPES[dtype] * (softmaxCopy ? 2n : 1n);
    const head = causal ? (t * (t + 1n)) / 2n : t * t;
    const layer = BigInt(batch) * c.heads * head;
    const model = c.layers * layer;
    return { head, layer, model, layer_bytes: each * layer, model_bytes: each * model };
  };

  const kvCache = (config, tokens, batch = 1, dtype = "bfloat16") => {
    const c = read(config);
    const t = BigInt(tokens);
    const layer = 2n * c.keys * DTYPES[dtype];
    const kept = c.windows.reduce((sum, w) => sum + (w === null ? t : least(t, w - 1n)), 0n);
    return { per_token: c.layers * layer, total: BigInt(batch) * layer * kept };
  };

  const norms = (config, tokens, batch = 1, dtype = "bfloat16") => {
    const c = read(config);
    const s = DTYPES[dtype];
    const rows = BigInt(batch) * BigInt(tokens);
    const shapes = normShapes(c);
    const layer = c.norm === "layernorm";
    const launches = total(shapes, () => 1n);
    const weights = normParameters(c) * s;
    const elements = rows * total(shapes, (shape) => shape.vectors * shape.features);
    const vectors = rows * total(shapes, (shape) => shape.vectors);
    const stream = rows * c.width * s;
    // The steps in float32, then widening and rounding, then gain and bias.
    const narrow = s === 4n ? 0n : 2n * (s + 4n);
    const perFeature = 20n + (layer ? 12n : 0n) + narrow + 2n * s * (layer ? 2n : 1n);
    const steps = 5n + (layer ? 2n : 0n) + (s === 4n ? 0n : 2n) + (layer ? 2n : 1n);
    const fused = { bytes: 2n * elements * s + weights, launches };
    const adds = { bytes: 6n * c.layers * stream, launches: 2n * c.layers };
    const parallel = c.placement === "parallel";
    let joined = c.layers * (parallel ? 1n : 2n);
    if (["pre", "parallel"].includes(c.placement) && !c.final_norm) joined -= 1n;
    const removed = joined * (parallel ? 2n : 1n);
    const inside = c.qk_norm === "none" ? 0n : 2n * c.layers;
    return {
      count: launches - inside,
      qk_count: inside,
      parameters: normParameters(c),
      eager: {
        bytes: perFeature * elements + (layer ? 32n : 24n) * vectors + weights,
        launches: steps * launches,
      },
      fused,
      adds,
      fused_add: {
        bytes: fused.bytes + adds.bytes - joined * SAVED[c.placement] * stream,
        launches: fused.launches + adds.launches - removed,
      },
      kept_inputs: elements * s,
      kept_statistics: vectors * (layer ? 8n : 4n),
    };
  };

  /* As toFixed, but a tie goes to the even digit, as in Python: 16.125 is 16.12. toFixed alone takes the larger one. */
  const fixed = (value, places) => {
    const [before, after] = value.toFixed(60).split(".");
    const rounded = value.toFixed(places);
    const tie = /^50*$/.test(after.slice(places)) && "13579".includes(rounded.at(-1));
    return tie ? [before, after.slice(0, places)].filter(Boolean).join(".") : rounded;
  };
  const size = (bytes, digits = 3) =>
    `${fixed(Number(bytes) / 2 ** 30, digits)} GiB (${fixed(Number(bytes) / 1e9, digits)} GB)`;

  return { DTYPES, parameters, flops, scores, kvCache, norms, fixed, size };
})();
if (typeof module !== "undefined") module.exports = ledger;
