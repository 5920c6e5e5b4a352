// The rules for words and queries, exactly as the live search has them (reelscribe/viewer/index/word_rules.py); a test
// compares the two. Used as reelscribe.words.
"use strict";

(() => {
  const MOST_TERMS = 32;
  const LEAST_PREFIX = 2;
  // Scripts without spaces between words: there, each character is a word.
  const ALONE =
    "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3005-\\u3007\\u3040-\\u30ff\\u31f0-\\u31ff\\u3400-\\u4dbf" +
    "\\u4e00-\\u9fff\\uf900-\\ufaff\\uff66-\\uff9f\\u{20000}-\\u{323af}";
  const ASCII = /^[\0-\x7f]*$/;
  const ASCII_WORD = /[0-9A-Za-z]+/g;
  const ANY_WORD = new RegExp(
    `(?=[${ALONE}])[\\p{L}\\p{N}\\p{M}]\\p{M}*|(?:(?![${ALONE}])[\\p{L}\\p{N}]\\p{M}*)+`, "gu");
  const WITHOUT_SPACES = new RegExp(`^[${ALONE}]`, "u");

  // Case folding: what is left of differences when a character was small, large and small again.
  const caseless = (character) =>
    (character === "ı" ? character : character.toLowerCase().toUpperCase().toLowerCase());

  // A text without what does not matter: case and accents.
  function folded(text) {
    const bare = Array.from(text, caseless).join("").normalize("NFKD").replace(/[\u0300-\u036f]/g, "");
    return bare.normalize("NFC").toLowerCase();
  }

  // The words of a text as the index has them, each with where it starts and stops.
  function spans(text) {
    if (ASCII.test(text)) {
      return Array.from(text.matchAll(ASCII_WORD), (match) => (
        { start: match.index, stop: match.index + match[0].length, word: match[0].toLowerCase() }));
    }
    return Array.from(text.matchAll(ANY_WORD), (match) => (
      { start: match.index, stop: match.index + match[0].length, word: folded(match[0]).replace(/[^\p{L}\p{N}\p{M}]/gu, "") })).filter(({ word }) => word);
  }

  // The terms of a query: their words, and whether the last word is only a beginning. Throws a sentence for the user.
  function parse(query) {
    const terms = [];
    for (const [, phrase, chunk] of query.matchAll(/"([^"]*)"?|([^\s"]+)/g)) {
      const words = spans(chunk ?? phrase).map(({ word }) => word);
      if (!words.length) continue;
      const prefix = chunk !== undefined && chunk.endsWith("*") && !WITHOUT_SPACES.test(words.at(-1));
      if (prefix && words.length === 1 && [...words[0]].length < LEAST_PREFIX) {
        throw new Error(`A beginning of a word needs at least ${LEAST_PREFIX} characters before the star.`);
      }
      terms.push({ words, prefix });
    }
    if (terms.length > MOST_TERMS) {
      throw new Error(`A search can have up to ${MOST_TERMS} words and phrases; this one has ${terms.length}.`);
    }
    return terms;
  }

  function isAt(term, found, first) {
    return term.words.every((word, k) => {
      const other = found[first + k]?.word;
      return other !== undefined && (term.prefix && k === term.words.length - 1 ? other.startsWith(word) : other === word);
    });
  }

  // Where the terms are in a text, as ranges in order, none of which overlap; null if one of the terms is missing.
  function find(text, terms) {
    if (ASCII.test(text)) {
      const small = text.toLowerCase();
      if (!terms.every(({ words }) => words.every((word) => small.includes(word)))) return null; // the quick way
    }
    const found = spans(text);
    const ranges = [];
    for (const term of terms) {
      const before = ranges.length;
      for (let first = 0; first < found.length; first += 1) {
        if (isAt(term, found, first)) ranges.push([found[first].start, found[first + term.words.length - 1].stop]);
      }
      if (ranges.length === before) return null;
    }
    const joined = [];
    for (const [start, stop] of ranges.sort((one, other) => one[0] - other[0] || one[1] - other[1])) {
      const last = joined.at(-1);
      if (last && start < last[1]) last[1] = Math.max(last[1], stop);
      else joined.push([start, stop]);
    }
    return joined;
  }

  reelscribe.words = { parse, find, spans, folded };
})();
