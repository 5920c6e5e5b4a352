// The filter of the library as one types: what is chosen goes into the address, and live.js, or library.js in exported
// pages, shows what is there.
"use strict";

(() => {
  const REST_MS = 150; // so long a user who types quickly is waited for
  const form = document.getElementById("filters");
  let timer = 0;

  function apply() {
    clearTimeout(timer);
    const chosen = [...new FormData(form)].filter(([name, value]) => value && !(name === "sort" && value === "name"));
    const parameters = new URLSearchParams(chosen).toString();
    history.replaceState(null, "", location.pathname + (parameters && `?${parameters}`));
    document.dispatchEvent(new Event("reelscribe:asked"));
  }

  form?.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(apply, REST_MS);
  });
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
})();
