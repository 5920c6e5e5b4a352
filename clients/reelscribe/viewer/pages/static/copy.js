// Functions that the other scripts share: reelscribe.copy copies texts, .say shows a sentence at the lower edge, and
// .inWords writes times.
"use strict";

window.reelscribe = {};

(() => {
  const SHOWN_MS = 4000;
  let timer = 0;

  // Shows a sentence to everybody, and reads it to those who listen; `stays` keeps it until the next one.
  reelscribe.say = (text, stays = false) => {
    const said = document.getElementById("said");
    clearTimeout(timer);
    said.textContent = text;
    if (text && !stays) timer = setTimeout(() => { said.textContent = ""; }, SHOWN_MS);
  };

  // A time as players show it, such as "0:12" or "1:02:03".
  reelscribe.inWords = (seconds) => {
    const whole = Math.floor(Math.abs(seconds));
    const two = (number) => String(number).padStart(2, "0");
    const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    return (seconds <= -1 ? "-" : "") + (hours ? `${hours}:${two(minutes)}` : `${minutes}`) + `:${two(rest)}`;
  };

  // Pages from files may not use the clipboard in all browsers; there, a selection can still be copied.
  function copySelection(text) {
    const field = document.createElement("textarea");
    const focused = document.activeElement;
    field.value = text;
    field.className = "hidden";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    focused?.focus({ preventScroll: true });
    return done;
  }

  reelscribe.copy = async (text, success) => {
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      done = copySelection(text);
    }
    reelscribe.say(done ? success : `This browser does not let the page copy. Copy it from here: ${text}`, !done);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) reelscribe.copy(document.getElementById(button.dataset.copy).textContent, "Copied.");
  });
})();
