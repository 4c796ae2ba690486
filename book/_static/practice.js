/* Cards on which the reader decides first: a button compares the choice with the fold below it, opens that, and says
   how many went right. Without this script the choices and the folds stand there all the same. Nothing is stored. */
document.addEventListener("DOMContentLoaded", () => {
  const forms = [...document.querySelectorAll("form.practice")];
  if (!forms.length) return;
  /* One score for the cards that stand side by side; the first comparison of each counts. */
  const scores = new Map();
  for (const form of forms) {
    const group = form.closest("section.practice-card").parentElement;
    if (!scores.has(group)) {
      const shown = document.createElement("p");
      shown.className = "practice-score";
      shown.setAttribute("role", "status");
      form.closest("section.practice-card").before(shown);
      scores.set(group, { shown, results: new Map(), count: 0 });
    }
    scores.get(group).count += 1;
  }
  const tell = ({ shown, results, count }) => {
    const right = [...results.values()].filter(Boolean).length;
    shown.textContent = results.size ? `${right} of ${results.size} right at the first try, ${count} in all` : `${count} to decide`;
  };
  scores.forEach(tell);

  const value = (text) => (text.trim() ? Number(text.trim().replaceAll(",", "").replace("−", "-")) : NaN);
  const near = (a, b) => Math.abs(a - b) <= 0.005 * Math.abs(b);
  for (const form of forms) {
    const card = form.closest("section.practice-card");
    const fold = card.querySelector("details.question-compare");
    const wrongs = [...card.querySelectorAll(".practice-wrong")];
    const said = document.createElement("output");
    const button = document.createElement("button");
    button.textContent = "Compare";
    form.append(button, said);

    const typed = form.querySelector("input[type=text]");
    const judge = () => {
      if (!typed) {
        const chosen = [...form.querySelectorAll("fieldset")].map((set) => set.querySelector("input:checked")?.value);
        if (chosen.includes(undefined)) return null;
        const right = form.dataset.right.split("|");
        const good = right.map((value, i) => value === chosen[i]);
        return { right: good.every(Boolean), some: good.some(Boolean), fits: (wrong) => wrong.dataset.option === chosen[0] };
      }
      const number = value(typed.value);
      if (Number.isNaN(number)) return null;
      return { right: near(number, value(form.dataset.number)), fits: (wrong) => near(number, value(wrong.dataset.option)) };
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const found = judge();
      if (!found) {
        said.textContent = typed ? "Type a number first." : "Choose first.";
        return;
      }
      for (const wrong of wrongs) wrong.classList.toggle("is-chosen", !found.right && found.fits(wrong));
      const known = wrongs.find((wrong) => wrong.classList.contains("is-chosen"));
      const no = found.some ? "Half of it is right." : (form.dataset.no ?? "Not right.");
      said.textContent = found.right ? (form.dataset.yes ?? "Right.") : known ? `Not right. ${known.lastElementChild.textContent}` : no;
      form.classList.toggle("is-right", found.right);
      form.classList.toggle("is-wrong", !found.right);
      fold.open = true;
      const score = scores.get(card.parentElement);
      if (!score.results.has(form)) score.results.set(form, found.right);
      tell(score);
    });
  }
});
