// Keeps the parts with `data-live` up to date: it asks for the same page again and takes over only what differs, so that
// focus, scroll positions and what was typed stay. The body says after how many seconds; without that, nothing happens.
"use strict";

(() => {
  // What other scripts and the user have set on elements.
  const KEPT = new Set(["aria-current", "tabindex", "open", "data-now"]);
  let timer = 0;
  let failed = false;
  let latest = 0; // the number of the last request

  function takeOverAttributes(old, fresh) {
    for (const { name } of [...old.attributes]) {
      if (!KEPT.has(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (!KEPT.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
  }

  function takeOver(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    takeOverAttributes(old, fresh);
    takeOverChildren(old, fresh);
  }

  // Elements with an id are recognized wherever they are; others by their place and name.
  function takeOverChildren(old, fresh) {
    const wanted = new Set([...fresh.children].map((child) => child.id).filter(Boolean));
    for (const child of [...old.children]) if (child.id && !wanted.has(child.id)) child.remove();
    const known = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
    let place = old.firstChild;
    for (const node of [...fresh.childNodes]) {
      const same = place && !place.id && !node.id && place.nodeName === node.nodeName ? place : null;
      const match = node.id ? known.get(node.id) : same;
      if (!match) {
        old.insertBefore(document.importNode(node, true), place);
        continue;
      }
      // An element that is moved loses the focus, so what is before it goes first.
      while (place && place !== match && !place.id) place = removed(place);
      if (match === place) place = place.nextSibling;
      else old.insertBefore(match, place);
      takeOver(match, node);
    }
    while (place) place = removed(place);
  }

  // Removes a node, and returns the next one.
  function removed(node) {
    const next = node.nextSibling;
    node.remove();
    return next;
  }

  async function bringUpToDate() {
    const mine = latest += 1;
    const response = await fetch(location.pathname + location.search, { cache: "no-store" });
    if (!response.ok) throw new Error(`the server answered with status ${response.status}`);
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    if (mine !== latest) return; // another address was asked for meanwhile
    for (const part of document.querySelectorAll("[data-live]")) {
      const counterpart = fresh.getElementById(part.id);
      if (counterpart) takeOver(part, counterpart);
    }
    document.body.dataset.liveSeconds = fresh.body.dataset.liveSeconds ?? "0";
    document.dispatchEvent(new Event("reelscribe:updated"));
  }

  async function tick() {
    clearTimeout(timer);
    if (document.visibilityState === "visible") {
      try {
        await bringUpToDate();
        if (failed) reelscribe.say("");
        failed = false;
      } catch {
        if (!failed) reelscribe.say("The server does not answer, so this page is not up to date. Is reelscribe browse still running?", true);
        failed = true;
      }
    }
    plan();
  }

  function plan() {
    const seconds = Number(document.body.dataset.liveSeconds ?? 0);
    if (seconds > 0) timer = setTimeout(tick, seconds * 1000);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible" && Number(document.body.dataset.liveSeconds ?? 0) > 0) tick();
  });
  document.addEventListener("reelscribe:asked", tick); // the address of the page has changed
  plan();
})();
