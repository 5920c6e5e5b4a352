// The time of a source: its player, or a clock of its own where nothing can be played; keys, timeline, speed and links.
// Times are presentation times in seconds. follow.js uses it as reelscribe.player.
"use strict";

(() => {
  const STEP_SECONDS = 5;
  const box = document.getElementById("player");
  const media = document.getElementById("media");
  const timeline = document.getElementById("timeline");
  const area = timeline.querySelector(".play-area");
  const playhead = document.getElementById("playhead");
  const start = Number(box.dataset.start);
  const end = Math.max(Number(box.dataset.end), start + 0.001);
  const listeners = [];
  let clock = start; // the time while no media is there to tell it
  let wanted = null; // the time to go to as soon as the media can

  const works = () => media !== null && media.error === null && media.readyState > 0;

  const place = (time) => `${Math.min(Math.max(((time - start) / (end - start)) * 100, 0), 100)}%`;

  const player = {
    time: () => (wanted === null && works() ? media.currentTime : clock),

    seek(seconds, { play = false } = {}) {
      clock = Math.min(Math.max(seconds, start), end);
      if (works()) media.currentTime = Math.max(0, clock);
      else if (media !== null && media.error === null) wanted = clock;
      // A browser may refuse to play before the user has touched the page; then it waits at that time.
      if (play && media !== null) media.play().catch(() => {});
      showTime();
    },

    onTime(listener) {
      listeners.push(listener);
      listener(player.time());
    },
  };
  reelscribe.player = player;

  function showTime() {
    const time = player.time();
    const words = reelscribe.inWords(time);
    document.getElementById("now").textContent = words;
    playhead.style.left = place(time);
    timeline.setAttribute("aria-valuenow", time.toFixed(3));
    timeline.setAttribute("aria-valuetext", words);
    for (const listener of listeners) listener(time);
  }

  function cannot(text) {
    const note = document.getElementById("cannot");
    if (note.hidden && text) note.textContent = text;
    note.hidden = false;
  }

  if (media !== null) {
    const frame = () => {
      showTime();
      if (!media.paused && !media.ended) requestAnimationFrame(frame);
    };
    media.addEventListener("play", () => requestAnimationFrame(frame));
    for (const event of ["timeupdate", "seeking", "seeked"]) media.addEventListener(event, showTime);
    const reason = async () => {
      if (!("inStore" in box.dataset)) return "";
      // The server learns only when it plays such a source that it cannot, and its answer says why.
      const answer = await fetch(media.querySelector("source")?.src ?? media.src, { headers: { Range: "bytes=0-0" } });
      return answer.ok ? "" : answer.text();
    };
    const fails = () => { wanted = null; reason().catch(() => "").then(cannot); };
    const last = media.querySelector("source:last-of-type"); // it fails after all others have
    for (const failing of [media, ...(last ? [last] : [])]) failing.addEventListener("error", fails);
    const ready = () => {
      if (wanted !== null) media.currentTime = Math.max(0, wanted);
      wanted = null;
      if (media.videoWidth === 0 && box.dataset.player === "video") {
        cannot("This browser plays the audio of this file but cannot show its video.");
      }
      showTime();
    };
    if (media.readyState > 0) ready();
    else media.addEventListener("loadedmetadata", ready, { once: true });
    if (media.error !== null || media.networkState === HTMLMediaElement.NETWORK_NO_SOURCE) fails();
    document.getElementById("speed").addEventListener("change", (event) => {
      media.playbackRate = Number(event.target.value);
    });
  }

  // Where somebody types or chooses, keys mean what they always do.
  const ownKeys = "input, select, textarea, summary, [contenteditable]";

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.(ownKeys)) return;
    const onTimeline = event.target === timeline;
    const time = player.time();
    if (event.key === "ArrowLeft") player.seek(time - STEP_SECONDS);
    else if (event.key === "ArrowRight") player.seek(time + STEP_SECONDS);
    else if (event.key === "Home" && onTimeline) player.seek(start);
    else if (event.key === "End" && onTimeline) player.seek(end);
    else if (event.key === " " && works() && !event.target.closest?.("button")) {
      if (media.paused) media.play().catch(() => {});
      else media.pause();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }, { capture: true });

  const timeAt = (event) => {
    const frame = area.getBoundingClientRect();
    return start + ((event.clientX - frame.left) / Math.max(frame.width, 1)) * (end - start);
  };
  timeline.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.clientX < area.getBoundingClientRect().left) return;
    timeline.setPointerCapture(event.pointerId);
    player.seek(timeAt(event));
  });
  timeline.addEventListener("pointermove", (event) => {
    if (timeline.hasPointerCapture(event.pointerId)) player.seek(timeAt(event));
    const peek = document.getElementById("peek");
    const time = Math.min(Math.max(timeAt(event), start), end);
    peek.hidden = event.clientX < area.getBoundingClientRect().left;
    peek.textContent = reelscribe.inWords(time);
    peek.style.left = place(time);
  });
  timeline.addEventListener("pointerleave", () => { document.getElementById("peek").hidden = true; });

  document.getElementById("copy-link").addEventListener("click", () => {
    const time = player.time();
    const address = new URL(location.href);
    address.hash = `t=${time.toFixed(3)}`;
    // A server needs the time to choose the section of a long source.
    if (address.searchParams.has("t") || document.querySelector(".sections")) {
      address.searchParams.set("t", time.toFixed(3));
    }
    reelscribe.copy(address.href, `Link to ${reelscribe.inWords(time)} copied.`);
  });

  function followAddress() {
    const time = /^#t=(-?[0-9]+(?:\.[0-9]+)?)$/.exec(location.hash);
    if (time) player.seek(Number(time[1]), { play: true });
  }
  window.addEventListener("hashchange", followAddress);
  showTime();
  followAddress();
})();
