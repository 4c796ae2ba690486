/* Cards on which the reader decides first: a button compares the choice with the fold below it, opens that, and says
   how many went right. Without this script the choices and the folds stand there all the same. Nothing is stored. */
document.addEventListener("DOMContentLoaded", () => {
  const forms = [...document.querySelectorAll("form.practice")];
  if (!forms.length) return;
  const results = new Map(); // the first comparison of each card counts
  const score = document.createElement("p");
  score.className = "practice-score";
  score.setAttribute("role", "status");
  const tell = () => {
    const right = [...results.values()].filter(Boolean).length;
    score.textContent = results.size ? `${right} of ${results.size} right at the first try, ${forms.length} in all` : `${forms.length} to decide`;
  };
  forms[0].closest("section.practice-card").before(score);
  tell();

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
        const chosen = form.querySelector("input:checked");
        return chosen && { right: chosen.value === form.dataset.right, fits: (wrong) => wrong.dataset.option === chosen.value };
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
      said.textContent = found.right ? "Right." : known ? `Not right. ${known.lastElementChild.textContent}` : "Not right.";
      form.classList.toggle("is-right", found.right);
      form.classList.toggle("is-wrong", !found.right);
      fold.open = true;
      if (!results.has(form)) results.set(form, found.right);
      tell();
    });
  }
});
