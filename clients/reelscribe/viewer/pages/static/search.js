// The search of exported pages. What is searched is in the address.
"use strict";

(() => {
  const HITS_AT_ONCE = 50;
  const MOST_CHARACTERS = 600;
  const BEFORE = 200;
  const LABELS = { summary: "Summary", captions: "Captions", clips: "Clips", transcript: "Transcript" };
  const MOST_NAMED = 6;
  const { parse, find } = reelscribe.words;
  const { load, forget, make } = reelscribe.pieces;
  const result = document.getElementById("result");
  // The numbers of the pages that have a word, or a word that begins so.
  async function pagesWith(manifest, word, prefix) {
    const pages = new Set();
    const has = (first, last) => (prefix ? first.slice(0, word.length) <= word && word <= last.slice(0, word.length)
      : first <= word && word <= last);
    for (const [name, first, last] of manifest.words) {
      if (!has(first, last)) continue;
      for (const [other, steps] of await load(name)) {
        if (prefix ? !other.startsWith(word) : other !== word) continue;
        let page = 0;
        for (const step of steps) pages.add(page += step);
      }
    }
    return pages;
  }

  // The numbers of the pages that have all words, in order; only their texts can tell whether one text has them all.
  async function candidates(manifest, terms) {
    let pages = null;
    for (const { words, prefix } of terms) {
      for (const [k, word] of words.entries()) {
        const found = await pagesWith(manifest, word, prefix && k === words.length - 1);
        pages = pages ? new Set([...pages].filter((page) => found.has(page))) : found;
      }
    }
    return [...pages].sort((one, other) => one - other);
  }

  async function* hits(manifest, terms, kinds) {
    const pages = await candidates(manifest, terms);
    const asked = new Set(pages);
    for (const [name, first, last] of manifest.texts) {
      if (!pages.some((page) => first <= page && page <= last)) continue;
      for (const [page, address, thumbnails, source, missing, texts] of await load(name)) {
        if (!asked.has(page)) continue;
        for (const [kind, start, thumbnail, text] of texts) {
          const spans = kinds.has(kind) ? find(text, terms) : null;
          if (spans) yield { address, thumbnails, source, missing, kind, start, thumbnail, text, spans };
        }
      }
      forget(name);
    }
  }

  // The sources that the library finds by the same words.
  async function named(query) {
    const found = await reelscribe.pieces.sources(query, "");
    const items = found.slice(0, MOST_NAMED).map(({ path, address }) =>
      make("li", {}, make("a", { href: address }, make("bdi", {}, path))));
    if (found.length > MOST_NAMED) {
      const address = `index.html?${new URLSearchParams({ q: query })}`;
      items.push(make("li", {}, make("a", { href: address }, `Show all ${found.length.toLocaleString("en")} in the library`)));
    }
    const title = `${found.length.toLocaleString("en")} ${found.length === 1 ? "source" : "sources"} by name, folder or tag`;
    return found.length ? [make("section", { class: "named" }, make("h2", {}, title), make("ul", {}, ...items))] : [];
  }

  // The text with what was found marked; of a long one, the stretch around the first find.
  function marked(text, spans) {
    const long = text.length > MOST_CHARACTERS;
    const first = long ? Math.max(0, spans[0][0] - BEFORE) : 0;
    const stop = long ? Math.min(first + MOST_CHARACTERS, text.length) : text.length;
    const parts = first ? ["…"] : [];
    let at = first;
    for (const [start, end] of spans) {
      if (start >= stop) break;
      parts.push(text.slice(at, start), make("mark", {}, text.slice(start, Math.min(end, stop))));
      at = Math.min(end, stop);
    }
    return [...parts, text.slice(at, stop), stop < text.length ? "…" : ""];
  }

  function row(hit) {
    const picture = hit.thumbnail >= 0
      ? make("img", { src: `${hit.thumbnails}/${hit.thumbnail}.webp`, alt: "", loading: "lazy", decoding: "async" })
      : make("span", { class: "no-picture" }, "no picture");
    const link = make("a", { class: "stretched", href: `${hit.address}#t=${hit.start.toFixed(3)}` },
      make("span", { class: "time" }, reelscribe.inWords(hit.start)), " ", make("bdi", {}, hit.source));
    return make("li", { class: "hit" }, make("span", { class: "picture" }, picture), make("div", {},
      make("p", { class: "text", dir: "auto" }, ...marked(hit.text, hit.spans)),
      make("p", { class: "where" }, link, " ", make("span", { class: "tag" }, LABELS[hit.kind]),
        ...(hit.missing ? [" ", make("span", { class: "tag" }, "file is gone")] : []))));
  }

  function problem(text) {
    result.replaceChildren(make("p", { class: "box bad" }, text));
  }

  async function show(query, terms, kinds) {
    const list = make("ol", { class: "hits", id: "hits" });
    const title = make("h2", {}, "Searching …");
    const more = make("button", { type: "button" }, "Show more");
    const sources = await named(query);
    result.replaceChildren(...sources, make("div", { class: "headline", "aria-live": "polite" }, title), list);
    const found = hits(await load("manifest"), terms, kinds);
    let next = await found.next();

    async function showSome() {
      for (let k = 0; k < HITS_AT_ONCE && !next.done; k += 1) {
        list.append(row(next.value));
        next = await found.next();
      }
      const number = list.children.length;
      const amount = number.toLocaleString("en");
      title.textContent = next.done ? `${amount} ${number === 1 ? "hit" : "hits"}` : `More than ${amount} hits`;
      if (next.done) more.remove();
      else result.append(more);
      if (!number) {
        result.append(make("p", { class: "empty" }, "No text has these words. Fewer words, or a beginning such as ",
          make("code", {}, "circ*"), ", find more."));
      }
    }

    more.addEventListener("click", () => {
      const focused = list.lastElementChild;
      showSome().then(() => focused.nextElementSibling?.querySelector("a").focus(), (error) => problem(error.message));
    });
    await showSome();
  }

  function searchAddress() {
    const parameters = new URLSearchParams(location.search);
    const query = (parameters.get("q") ?? "").trim().slice(0, 500);
    const boxes = [...document.querySelectorAll("input[name=kind]")];
    const kinds = new Set(boxes.map((box) => box.value).filter((kind) => parameters.getAll("kind").includes(kind)));
    for (const box of boxes) {
      if (!kinds.size) box.checked = true;
      else box.checked = kinds.has(box.value);
    }
    if (!query) return;
    document.getElementById("q").value = query;
    document.title = `${query} · ${document.title}`;
    try {
      const terms = parse(query);
      if (!terms.length) throw new Error('Type at least one word, "a phrase in quotes" or the beginning of a word with a star, as in circ*.');
      show(query, terms, kinds.size ? kinds : new Set(boxes.map((box) => box.value))).catch((error) => problem(error.message));
    } catch (error) {
      problem(error.message);
    }
  }

  searchAddress();
})();
