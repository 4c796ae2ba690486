/* Paper is white and cannot be unfolded: pages are printed in the light theme, with solutions and folded text open.
   Folded code stays out (course.css, which by itself opens boxes in browsers of 2025 and later only). */
{
  let undo = null;

  const dress = () => {
    if (undo) return;
    const root = document.documentElement;
    const theme = root.dataset.theme;
    const boxes = [...document.querySelectorAll("article details:not([open])")];
    const opened = boxes.filter((box) => !box.matches(".tag_hide-input > *, .normlab-source"));
    root.dataset.theme = "light";
    for (const box of opened) box.open = true;
    undo = () => {
      root.dataset.theme = theme;
      for (const box of opened) box.open = false;
      undo = null;
    };
  };

  addEventListener("beforeprint", dress);
  addEventListener("afterprint", () => undo?.());
  matchMedia("print").addEventListener("change", (print) => (print.matches ? dress() : undo?.()));
}
