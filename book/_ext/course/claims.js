/* The ledger: filters by verdict, chapter, kind and word, and covers what came out, card by card, until it is asked
   for. Nothing is stored; without this script the page is the whole list. */
{
  const form = document.querySelector("form.claim-filter");
  const cards = [...document.querySelectorAll(".claim-card")];
  const groups = [...document.querySelectorAll(".claim-group")];
  const cover = form.querySelector(".claim-cover");
  const plain = (text) => text.toLowerCase().replaceAll("’", "'").replaceAll("−", "-");
  const texts = new Map(cards.map((card) => [card, plain(card.textContent)]));

  const filter = () => {
    const choice = new FormData(form);
    const classes = ["verdict", "chapter", "kind"].map((name) => choice.get(name)).filter(Boolean);
    const words = plain(choice.get("words")).split(/\s+/);
    let shown = 0;
    for (const card of cards) {
      const fits = classes.every((name) => card.classList.contains(name));
      card.hidden = !(fits && words.every((word) => texts.get(card).includes(word)));
      shown += !card.hidden;
    }
    for (const group of groups) group.hidden = !group.querySelector(".claim-card:not([hidden])");
    form.querySelector("output").textContent = `${shown} of ${cards.length} claims`;
  };

  /* A covered card shows its sentence, its name and a button. */
  const uncover = (card, open) => {
    const button = card.querySelector(".claim-reveal");
    card.classList.toggle("is-covered", !open);
    button.setAttribute("aria-expanded", open);
    button.textContent = open ? "cover again" : "what came out?";
  };

  const coverAll = (covered) => {
    cover.setAttribute("aria-pressed", covered);
    cover.textContent = covered ? "Uncover the verdicts" : "Cover the verdicts";
    for (const card of cards) {
      card.querySelector(".claim-reveal")?.remove();
      card.classList.remove("is-covered");
      if (!covered) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "claim-reveal";
      button.addEventListener("click", () => uncover(card, card.classList.contains("is-covered")));
      card.querySelector(".claim-head").append(button);
      uncover(card, false);
    }
  };

  const forget = () => {
    form.reset();
    coverAll(false);
    filter();
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  cover.addEventListener("click", () => coverAll(cover.getAttribute("aria-pressed") !== "true"));
  addEventListener("pageshow", forget); // what the browser may have kept of the form
  form.hidden = false;
}
