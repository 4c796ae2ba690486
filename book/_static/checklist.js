/* The Monday page: a box in front of everything to do, remembered by this browser and nobody else. Without this script
   the page is a plain list; without site data (storage.js) the boxes forget with the page. */
document.addEventListener("DOMContentLoaded", () => {
  const KEY = "course-monday";
  const items = [...document.querySelectorAll(".checklist > li[id]")];
  if (!items.length || cutOff) return;

  const read = () => {
    try {
      const names = JSON.parse(localStorage.getItem(KEY));
      return new Set(Array.isArray(names) ? names : []);
    } catch {
      return new Set();
    }
  };
  const keep = () => {
    try {
      localStorage.setItem(KEY, JSON.stringify([...done]));
    } catch {
      // no room: the boxes still work on this page
    }
  };
  let done = read();
  let before = null; // what "Start again" took away

  const boxes = items.map((item) => {
    const label = document.createElement("label");
    const box = document.createElement("input");
    const title = item.querySelector(".checklist-title");
    title.id = `${item.id}-title`;
    box.type = "checkbox";
    box.autocomplete = "off";
    box.setAttribute("aria-labelledby", title.id);
    label.className = "checklist-box";
    label.append(box);
    item.prepend(label);
    box.addEventListener("change", () => {
      done[box.checked ? "add" : "delete"](item.id);
      before = null;
      keep();
      show();
    });
    return box;
  });

  const status = document.createElement("div");
  const said = document.createElement("output");
  const again = document.createElement("button");
  status.className = "checklist-status";
  again.type = "button";
  status.append(said, again);
  document.querySelector("article section").append(status);
  again.addEventListener("click", () => {
    [done, before] = before ? [before, null] : [new Set(), done];
    keep();
    show();
  });

  const minutes = (item) => parseInt(item.querySelector(".checklist-minutes").textContent, 10);
  const sum = (chosen) => chosen.reduce((total, item) => total + minutes(item), 0);
  const kept = localStorage instanceof Storage ? "" : " This browser keeps no site data: the checks go with the page.";
  const show = () => {
    items.forEach((item, i) => {
      boxes[i].checked = done.has(item.id);
      item.classList.toggle("is-done", boxes[i].checked);
    });
    const open = items.filter((item) => !done.has(item.id));
    said.textContent = `${items.length - open.length} of ${items.length} done, ${sum(open)} of ${sum(items)} minutes left.${kept}`;
    again.textContent = before ? "Undo" : "Start again";
    again.disabled = !before && open.length === items.length;
  };
  addEventListener("storage", (event) => {
    if (event.key !== KEY && event.key !== null) return; // another tab
    done = read();
    before = null;
    show();
  });
  show();
});
