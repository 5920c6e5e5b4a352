// The index of exported pages, in pieces, which are scripts, because pages from files may load nothing else.
// reelscribe/viewer/site/search_pieces.py says what is in them. Used as reelscribe.pieces, with `make`, by search.js and library.js,
// which make elements of what the pieces hold.
"use strict";

(() => {
  const wanted = new Map(); // pieces that are being loaded or were, by name
  const { folded } = reelscribe.words;

  // Each piece calls this.
  reelscribe.piece = (name, value) => wanted.get(name)?.done(value);

  function load(name) {
    if (!wanted.has(name)) {
      const entry = {};
      entry.value = new Promise((resolve, reject) => {
        const script = document.createElement("script");
        entry.done = resolve;
        script.onerror = () => reject(new Error(`The file index/${name}.js cannot be read. Was the folder copied as a whole?`));
        script.onload = () => { script.remove(); reject(new Error(`The file index/${name}.js is damaged.`)); };
        script.src = `index/${name}.js`;
        document.head.append(script);
      });
      wanted.set(name, entry);
    }
    return wanted.get(name).value;
  }

  // The texts of a search are needed once; a library may have more of them than fit in memory.
  function forget(name) {
    wanted.delete(name);
  }

  // The sources that have all parts of a query in path or tags, and are in a folder or below it; in order.
  async function sources(query, folder) {
    const parts = (query.match(/[^\s"*]+/g) ?? []).map(folded);
    const found = [];
    for (const [name] of (await load("manifest")).sources) {
      for (const [number, path, address, text] of await load(name)) {
        if ((!folder || path.startsWith(`${folder}/`)) && parts.every((part) => text.includes(part))) {
          found.push({ number, path, address });
        }
      }
    }
    return found;
  }

  // A source in the library, as HTML.
  async function card(number) {
    const [name] = (await load("manifest")).cards.find(([, first, last]) => first <= number && number <= last);
    const cards = await load(name);
    return cards[number - cards[0][0]][1];
  }

  // An element with attributes and children, texts among them.
  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  reelscribe.pieces = { load, forget, sources, card, make };
})();
