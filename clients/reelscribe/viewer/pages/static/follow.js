// Follows the time of the player in the lists of lines, on the timeline, among the words and in the thumbnails, and
// takes the user to the time of a line.
"use strict";

(() => {
  const player = reelscribe.player;
  const REST_MS = 5000; // so long a list stays where the user has scrolled it
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const followed = new Map(); // by kind, so that marks survive when lines are added
  let active = ""; // the kind whose lines the keys go through

  class Lines {
    constructor(list) {
      this.list = list;
      this.current = -1;
      this.restsUntil = 0;
      for (const event of ["wheel", "touchmove", "pointerdown"]) {
        list.addEventListener(event, () => { this.restsUntil = performance.now() + REST_MS; }, { passive: true });
      }
      this.read();
    }

    // Reads the list anew.
    read() {
      this.items = [...this.list.children];
      this.starts = this.items.map((item) => Number(item.dataset.from ?? item.dataset.start));
      this.ends = this.items.map((item) => Number(item.dataset.end ?? Infinity));
      const lane = this.list.dataset.kind ? document.getElementById(`lane-${this.list.dataset.kind}`) : null;
      this.bars = lane ? [...lane.children] : [];
      for (const item of this.items) item.querySelector("a").tabIndex = -1;
      this.reachable = null;
      this.mark(this.current, true);
    }

    // The number of the last line that has begun at a time, or -1.
    begunAt(time) {
      let [low, high] = [0, this.starts.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.starts[middle] <= time + 0.002) low = middle + 1;
        else high = middle;
      }
      return low - 1;
    }

    show(time) {
      const begun = this.begunAt(time);
      const current = begun >= 0 && time < this.ends[begun] ? begun : -1;
      if (current !== this.current) {
        this.mark(current);
        if (performance.now() > this.restsUntil) this.scrollTo(current);
      }
      if (current >= 0) this.markWord(this.items[current], time);
    }

    mark(current, again = false) {
      const before = this.items[this.current];
      if (before && !again) {
        before.removeAttribute("aria-current");
        before.querySelector("[data-now]")?.removeAttribute("data-now");
        this.bars[this.current]?.removeAttribute("data-now");
      }
      this.current = current;
      this.items[current]?.setAttribute("aria-current", "true");
      this.bars[current]?.setAttribute("data-now", "");
      this.reach(this.items[current >= 0 ? current : 0]);
    }

    // One line of each list can be reached with Tab; the arrow keys go on from there.
    reach(item) {
      if (!item || item === this.reachable) return;
      const link = item.querySelector("a");
      const focused = this.list.contains(document.activeElement);
      if (this.reachable) this.reachable.querySelector("a").tabIndex = -1;
      link.tabIndex = 0;
      this.reachable = item;
      if (focused) link.focus({ preventScroll: true });
    }

    markWord(item, time) {
      for (const word of item.querySelectorAll("[data-word]")) {
        const now = Number(word.dataset.word) <= time && time < Number(word.dataset.until);
        if (now !== word.hasAttribute("data-now")) word.toggleAttribute("data-now", now);
      }
    }

    // Scrolls within the list; the page stays where it is.
    scrollTo(current) {
      const item = this.items[current];
      if (!item) return;
      const list = this.list;
      const behavior = calm.matches ? "auto" : "smooth";
      const place = item.getBoundingClientRect();
      const frame = list.getBoundingClientRect();
      list.scrollTo({
        top: list.scrollTop + place.top - frame.top - (list.clientHeight - place.height) / 2,
        left: list.scrollLeft + place.left - frame.left - (list.clientWidth - place.width) / 2,
        behavior,
      });
    }

    step(direction) {
      const begun = this.begunAt(player.time());
      const next = Math.min(Math.max(begun + direction, 0), this.items.length - 1);
      this.restsUntil = 0;
      player.seek(this.starts[next]);
    }
  }

  function setActive(kind) {
    active = kind;
    for (const [other, { list }] of followed) list.closest(".track").toggleAttribute("data-now", other === kind);
  }

  function readLists() {
    for (const list of document.querySelectorAll("ol.lines")) {
      const known = followed.get(list.dataset.kind);
      if (known) known.read();
      else followed.set(list.dataset.kind, new Lines(list));
    }
    const kinds = ["transcript", "translations", "captions", "clips", "shots", "speakers"].filter((kind) => followed.get(kind)?.items.length);
    if (!followed.get(active)?.items.length && kinds.length) setActive(kinds[0]);
    for (const lines of followed.values()) lines.show(player.time());
  }

  document.addEventListener("click", (event) => {
    const item = event.target.closest?.(".lines > li, .thumbnails > li");
    if (!item || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (!getSelection().isCollapsed) return; // the user selects text and does not want to go there
    const list = item.parentElement;
    const lines = followed.get(list.dataset.kind);
    if (lines) {
      lines.restsUntil = performance.now() + REST_MS; // the line is in view already
      setActive(list.dataset.kind);
    }
    player.seek(Number(event.target.dataset.word ?? item.dataset.start), { play: true });
  });

  document.addEventListener("focusin", (event) => {
    const kind = event.target.closest?.("ol.lines")?.dataset.kind;
    if (kind) setActive(kind);
  });

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.("input, select, textarea")) return;
    const direction = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!direction || !followed.get(active)?.items.length) return;
    event.preventDefault();
    event.stopPropagation();
    followed.get(active).step(direction);
  }, { capture: true });

  const strip = document.getElementById("thumbnails");
  if (strip) {
    const thumbnails = new Lines(strip);
    const still = document.getElementById("still");
    player.onTime((time) => {
      thumbnails.show(Math.max(time, thumbnails.starts[0]));
      const picture = thumbnails.items[thumbnails.current].querySelector("img");
      if (still.src !== picture.src) still.src = picture.src;
    });
  }

  readLists();
  document.addEventListener("reelscribe:updated", readLists);
  player.onTime((time) => { for (const lines of followed.values()) lines.show(time); });
})();
