// The library of exported pages, filtered by what the address says: words, a folder, and a page of what was found. Without
// them, the page stays as it is.
"use strict";

(() => {
  const CARDS_A_PAGE = 96;
  const { make } = reelscribe.pieces;
  const home = document.querySelector(".brand").getAttribute("href");
  const parts = ["count", "folders", "cards", "nothing", "pager"].map((id) => document.getElementById(id));
  const before = parts.map((part) => part.innerHTML);
  let latest = 0;

  function link(text, query, attributes = {}) {
    const asked = Object.entries(query).filter(([, value]) => value);
    return make("a", { href: home + (asked.length ? `?${new URLSearchParams(asked)}` : ""), ...attributes }, text);
  }

  const folderLink = (name, folder) => link(make("bdi", {}, name), { folder });

  // The folders on the way to a folder, and those in it with the number of their sources.
  function folderLinks(folder, all) {
    const names = folder ? folder.split("/") : [];
    const way = names.flatMap((name, k) => [" / ", folderLink(name, names.slice(0, k + 1).join("/"))]);
    const counts = new Map();
    for (const { path } of all) {
      const below = folder ? path.slice(folder.length + 1) : path;
      const end = below.indexOf("/");
      if (end > 0) counts.set(below.slice(0, end), (counts.get(below.slice(0, end)) ?? 0) + 1);
    }
    const items = [...counts].sort().map(([name, count]) => make("li", {},
      folderLink(name, folder ? `${folder}/${name}` : name), " ", make("span", { class: "number" }, count.toLocaleString("en"))));
    return make("nav", { class: "folders", "aria-label": "Folders" },
      make("p", {}, link("All folders", {}), ...way), ...(items.length ? [make("ul", {}, ...items)] : []));
  }

  function pageLinks(query, page, pages) {
    const links = [];
    for (let number = 1; number <= pages; number += 1) {
      if (number === 1 || number === pages || Math.abs(number - page) <= 2) {
        const current = number === page ? { "aria-current": "page" } : {};
        links.push(link(`${number}`, { ...query, page: number }, { "aria-label": `Page ${number} of ${pages}`, ...current }));
      } else if (Math.abs(number - page) === 3) links.push("…");
    }
    return pages > 1 ? [make("nav", { class: "pager", "aria-label": "Pages of results" }, ...links)] : [];
  }

  async function show() {
    const mine = latest += 1;
    const parameters = new URLSearchParams(location.search);
    const query = { q: (parameters.get("q") ?? "").trim().slice(0, 500), folder: parameters.get("folder") ?? "" };
    const [count, folders, cards, nothing, pager] = parts;
    if (!query.q && !query.folder) {
      parts.forEach((part, k) => { part.innerHTML = before[k]; });
      return;
    }
    const all = await reelscribe.pieces.sources("", "");
    const inFolder = await reelscribe.pieces.sources("", query.folder);
    const found = await reelscribe.pieces.sources(query.q, query.folder);
    const pages = Math.max(1, Math.ceil(found.length / CARDS_A_PAGE));
    const page = Math.min(Math.max(1, parseInt(parameters.get("page") ?? "1", 10) || 1), pages);
    const some = found.slice((page - 1) * CARDS_A_PAGE, page * CARDS_A_PAGE);
    const shown = await Promise.all(some.map(({ number }) => reelscribe.pieces.card(number)));
    if (mine !== latest) return; // something else was asked for meanwhile
    count.replaceChildren(`${found.length.toLocaleString("en")} of ${all.length.toLocaleString("en")} sources `, link("Show all", {}));
    folders.replaceChildren(folderLinks(query.folder, inFolder));
    cards.innerHTML = shown.join("");
    nothing.innerHTML = found.length ? "" : '<p class="empty">No source fits these filters.</p>';
    pager.replaceChildren(...pageLinks(query, page, pages));
  }

  function showOrSay() {
    show().catch((error) => reelscribe.say(error.message, true));
  }

  document.addEventListener("reelscribe:asked", showOrSay);
  const field = document.querySelector("#filters input[name=q]");
  const folder = new URLSearchParams(location.search).get("folder");
  if (field) {
    field.value = new URLSearchParams(location.search).get("q") ?? "";
    if (folder) field.after(make("input", { type: "hidden", name: "folder", value: folder }));
  }
  if (location.search) showOrSay();
})();
