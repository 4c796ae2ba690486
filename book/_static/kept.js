/* Chromium sometimes cuts a page that is opened from a file off from what the browser keeps: the page finds nothing, and
   what it writes is lost. Nothing on such a page tells it from a first visit, so a page without this mark sets it and
   loads once more, three times at most, before it shows anything that the reader would want kept. */
const cutOff = (() => {
  if (location.protocol !== "file:" || !(localStorage instanceof Storage)) return false;
  const times = history.state?.times ?? 0;
  const kept = localStorage.getItem("course-kept") !== null;
  history.replaceState(kept ? null : { times: times + 1 }, "");
  if (kept || times === 3) return false;
  localStorage.setItem("course-kept", "yes");
  location.reload();
  return true;
})();
