/* The mock interview: draws from the questions on the page, takes the time, and lets the grade choose what follows, by
   the tree of normlab.interview.mock. What came out is kept in this browser only (storage.js stands in where it keeps
   nothing). Without this script the page is the list of the questions with their answers, folded. */
document.addEventListener("DOMContentLoaded", () => {
  const box = document.querySelector("div.mock");
  if (!box || cutOff) return;
  const { tree, tiers, levels } = JSON.parse(box.querySelector("script").textContent);
  const pool = document.querySelector(".mock-pool");
  const questions = [...pool.querySelectorAll("details.mock-question")];
  const KEY = "normlab-mock-interview";
  const known = new Map(questions.map((question) => [question.dataset.id, question]));

  // --- what is kept ---
  const load = () => {
    try {
      const found = JSON.parse(localStorage.getItem(KEY));
      return Array.isArray(found) ? found.filter((round) => round && known.has(round.id) && Array.isArray(round.missed)) : [];
    } catch {
      return [];
    }
  };
  let rounds = load();
  const keep = () => {
    try {
      localStorage.setItem(KEY, JSON.stringify(rounds));
    } catch {
      // the list lasts as long as the page
    }
  };

  // --- parts of the page ---
  const make = (tag, text = "", attributes = {}) => {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const button = (text, act) => {
    const element = make("button", text, { type: "button" });
    element.addEventListener("click", act);
    return element;
  };
  const copy = (element) => [...element.childNodes].map((node) => node.cloneNode(true));
  const clockText = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

  const form = make("form", "", { "aria-label": "Which questions", autocomplete: "off" });
  const choice = (name, options) => {
    const label = make("label", `${name} `);
    const select = make("select");
    for (const [value, text] of options) select.add(new Option(text, value));
    label.append(select);
    form.append(label);
    return select;
  };
  const any = [["", "any"]];
  const longest = Math.max(...questions.map((question) => +question.dataset.minutes));
  const has = (field) => (value) => questions.some((question) => question.dataset[field] === value);
  const tier = choice("Tier", [...any, ...tiers.filter(has("tier")).map((value) => [value, value])]);
  const level = choice("Level", [...any, ...levels.filter(has("level")).map((value) => [value, value])]);
  const minutes = choice("Minutes", [...any, ...Array.from({ length: longest }, (_, i) => [String(i + 1), `at most ${i + 1}`])]);
  const draw = make("button", "Draw a question");
  const count = make("output");
  form.append(draw, count);
  const stage = make("section", "", { "aria-label": "The question", class: "mock-stage" });
  stage.hidden = true;
  const report = make("section", "", { "aria-label": "What came out", class: "mock-report" });
  box.append(form, stage, report);
  pool.classList.add("is-away");

  const fitting = () =>
    questions.filter(
      ({ dataset }) =>
        (!tier.value || dataset.tier === tier.value) &&
        (!level.value || dataset.level === level.value) &&
        (!minutes.value || +dataset.minutes <= +minutes.value),
    );
  const tellCount = () => {
    const found = fitting().length;
    count.textContent = found === 1 ? "1 question fits" : `${found} questions fit`;
    draw.disabled = !found;
  };

  // --- a round ---
  let ticking = null;
  let round = null;

  const show = (asked, ...rest) => {
    const line = make("div", "", { class: "mock-asked", tabindex: "-1" });
    line.append(...asked);
    stage.replaceChildren(line, ...rest);
    stage.hidden = false;
    line.focus();
  };
  const stop = () => {
    clearInterval(ticking);
    ticking = null;
  };
  const timer = (limit) => {
    const start = performance.now();
    const shown = make("p", "", { class: "mock-timer", role: "timer" });
    const seconds = () => (performance.now() - start) / 1000;
    const tick = () => {
      shown.textContent = `${clockText(seconds())} of ${clockText(limit)}`;
      shown.classList.toggle("is-over", seconds() > limit);
    };
    stop();
    tick();
    ticking = setInterval(tick, 500);
    return { shown, seconds };
  };

  const begin = (question) => {
    const { id, tier, level, type, minutes } = question.dataset;
    round = { id, points: 0, seconds: 0, missed: [] };
    const { shown, seconds } = timer(60 * +minutes);
    const meta = make("p", `${tier} · ${level} · ${type} · ${minutes} minute${minutes === "1" ? "" : "s"}`, { class: "question-meta" });
    const done = button("I have answered", () => {
      round.seconds = Math.round(seconds());
      stop();
      grade(question);
    });
    show(copy(question.querySelector("summary")), meta, shown, done);
  };

  const grade = (question) => {
    const fieldset = make("fieldset");
    fieldset.append(make("legend", `You took ${clockText(round.seconds)}. Tick what holds.`));
    const boxes = [...question.querySelectorAll(".mock-point")].map((point) => {
      const label = make("label");
      const tick = make("input", "", { type: "checkbox" });
      const text = make("span");
      text.append(...copy(point.querySelector("p")));
      label.append(tick, text);
      fieldset.append(label);
      return tick;
    });
    const next = button("Go on", () => {
      round.points = boxes.filter((tick) => tick.checked).length;
      follow(question, tree.answer[round.points]);
    });
    show(copy(question.querySelector("summary")), fieldset, next);
  };

  const follow = (question, name) => {
    if (name === null) return finish(question);
    const part = question.querySelector(`[data-step="${name}"]`);
    const asked = copy(part.querySelector("p"));
    const done = button("I have answered", () => {
      const answer = make("div", "", { class: "mock-answer" });
      answer.append(...copy(part.querySelector(".mock-answer")));
      const right = button("That was mine", () => follow(question, tree[name].right));
      const wrong = button("It was not", () => {
        round.missed.push(name);
        follow(question, tree[name].wrong);
      });
      show(asked.map((node) => node.cloneNode(true)), answer, right, wrong);
    });
    show(asked, done);
  };

  const finish = (question) => {
    rounds.push(round);
    keep();
    const weak = toRevise(round);
    const line = make("span", `${round.points} of 3 points. ${weak ? "Revise it: " : "Nothing to revise here: "}`);
    round = null;
    show([line, link(question)], button("Draw another", drawOne));
    tellReport();
  };

  const toRevise = ({ points, missed }) => points < 3 || missed.length > 0;
  const link = (question) => {
    const element = make("a", "", { href: question.dataset.href });
    element.append(...copy(question.querySelector("summary")));
    return element;
  };

  const drawOne = () => {
    const found = fitting();
    if (!found.length) return form.querySelector("select").focus();
    const times = (question) => rounds.filter(({ id }) => id === question.dataset.id).length;
    const fewest = Math.min(...found.map(times));
    const fresh = found.filter((question) => times(question) === fewest);
    begin(fresh[Math.floor(Math.random() * fresh.length)]);
  };

  // --- what came out ---
  const tellReport = () => {
    report.replaceChildren();
    if (!rounds.length) return;
    const points = rounds.reduce((sum, one) => sum + one.points, 0);
    report.append(make("p", `${rounds.length} answered, ${points} of ${3 * rounds.length} points.`, { class: "mock-total" }));
    const latest = new Map(rounds.map((one) => [one.id, one])); // the last round of a question counts
    const weak = [...latest.values()].filter(toRevise);
    report.append(make("p", weak.length ? "To revise:" : "Nothing to revise among these."));
    const list = make("ul");
    for (const one of weak) {
      const item = make("li");
      const question = known.get(one.id);
      const missed = one.missed.length ? `, and a further question was missed` : "";
      item.append(link(question), make("span", ` ${one.points} of 3${missed}. `, { class: "question-meta" }));
      item.append(question.querySelector(".question-claims").cloneNode(true));
      list.append(item);
    }
    report.append(list);
    report.append(
      button("Forget all", () => {
        rounds = [];
        try {
          localStorage.removeItem(KEY);
        } catch {
          // nothing was kept
        }
        tellReport();
        draw.focus();
      }),
    );
  };

  form.addEventListener("change", tellCount);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    drawOne();
  });
  addEventListener("pagehide", stop);
  addEventListener("beforeprint", () => pool.classList.remove("is-away")); // paper gets the list
  addEventListener("afterprint", () => pool.classList.add("is-away"));
  tellCount();
  tellReport();
});
