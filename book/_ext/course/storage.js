/* Where the browser keeps no site data, or has no room for any, the theme's scripts would stop at their first look at
   it. What stands in forgets with the page. */
for (const name of ["localStorage", "sessionStorage"]) {
  let kept = {};
  try {
    kept = { ...window[name] };
    window[name].setItem("course-room", "x".repeat(2000));
    window[name].removeItem("course-room");
  } catch {
    const items = new Map(Object.entries(kept));
    const value = {
      getItem: (key) => items.get(String(key)) ?? null,
      setItem: (key, item) => void items.set(String(key), String(item)),
      removeItem: (key) => void items.delete(String(key)),
    };
    Object.defineProperty(window, name, { value, configurable: true });
  }
}
