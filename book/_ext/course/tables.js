/* Large tables: choose rows by words and by the values of some columns, sort by any column. Nothing is stored; without
   this script the table is whole and in order. */
for (const table of document.querySelectorAll("table.is-searchable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const rows = [...body.rows]; // in the order of the page
  const text = (row, column) => row.cells[column].textContent;
  const plain = (words) => words.toLowerCase().replaceAll("−", "-").replaceAll("–", "-");
  const texts = new Map(rows.map((row) => [row, plain([...row.cells].map((cell) => cell.textContent).join(" "))]));
  const hint = document.createElement("p");
  hint.className = "table-hint";
  hint.textContent = "More columns: scroll sideways. A click on a column’s name sorts.";

  const form = document.createElement("form");
  form.className = "claim-filter table-filter";
  form.autocomplete = "off";
  form.setAttribute("aria-label", "Filter the table");
  const labeled = (name, field) => {
    const label = document.createElement("label");
    label.append(`${name} `, field);
    form.append(label);
  };
  heads.forEach((head, column) => {
    if (!("filter" in head.dataset)) return;
    const select = document.createElement("select");
    select.name = column;
    const values = [...new Set(rows.map((row) => text(row, column)))].sort();
    const count = (value) => rows.filter((row) => text(row, column) === value).length;
    select.append(new Option("all", ""), ...values.map((value) => new Option(`${value} (${count(value)})`, value)));
    labeled(head.textContent, select);
  });
  const words = document.createElement("input");
  words.type = "search";
  words.name = "words";
  words.placeholder = "mistral";
  labeled("words", words);
  const last = document.createElement("p");
  const output = document.createElement("output");
  output.setAttribute("aria-live", "polite");
  const reset = document.createElement("button");
  reset.type = "reset";
  reset.textContent = "Show all";
  last.append(reset, " ", output);
  form.append(last);

  const filter = () => {
    const choices = [...new FormData(form)].filter(([name, value]) => name !== "words" && value);
    const wanted = plain(words.value).split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      const fits = choices.every(([column, value]) => text(row, column) === value);
      row.hidden = !(fits && wanted.every((word) => texts.get(row).includes(word)));
      shown += !row.hidden;
    }
    output.textContent = `${shown} of ${rows.length} rows`;
  };

  /* A column of numbers sorts by them; rows that are equal keep the page's order. */
  const sort = (column) => {
    const head = heads[column];
    const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    const numbers = rows.every((row) => text(row, column) === "–" || !Number.isNaN(parseFloat(text(row, column))));
    const compare = (a, b) =>
      numbers ? (parseFloat(a) || 0) - (parseFloat(b) || 0) : a.localeCompare(b, "en", { numeric: true });
    const sign = direction === "ascending" ? 1 : -1;
    body.append(...[...rows].sort((a, b) => sign * compare(text(a, column), text(b, column))));
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(column));
    head.replaceChildren(button);
  });

  const box = table.parentElement;
  box.before(form, hint);
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () =>
    setTimeout(() => {
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      body.append(...rows);
      filter();
    }),
  );
  filter();
}
