// The replay of one item: controls, the step in words, its comparisons, the hierarchy and the item itself.

import { el, icon, placed, quoted } from "./dom.js";
import { sourceView } from "./source.js";
import { treeView } from "./tree.js";
import { comparisons, decided, ended, fate, walkOf } from "./walk.js";
import { capital, count, kept, number, scores, share, span, titled } from "./words.js";

/** Time that a step stands while it plays, in milliseconds. */
const PACE = 1200;

/** The replay of an item: its element, a function that stops it, and one that takes a key. */
export function player(cited, answer) {
  const walk = walkOf(cited);
  const source = sourceView(cited);
  const heading = head(cited, answer);
  if (!walk) {
    source.show(ended(cited.evidence), null);
    const note = el("p", { class: "note" }, "This item was not traced, so there are no steps: this is what became of it.");
    return { element: el("div", {}, heading, note, source.element), stop: () => {}, key: () => false };
  }
  const tree = treeView(cited, walk, (step) => go(step));
  const words = el("p", { class: "words", role: "status", "aria-live": "polite" });
  const compared = el("div", { class: "compared" });
  const end = walk.steps.length - 1;
  const controls = controlsOf(end, { go: (step) => go(step), by: (step) => go(place + step), play: () => toggle() });
  const table = listing(cited, walk, (step) => go(step));
  let place = end;
  let timer = null;

  function show() {
    const step = walk.steps[place];
    const now = decided(walk, place, cited.evidence.fragments);
    words.textContent = told(cited, answer, step);
    compared.replaceChildren(...bars(cited, answer, walk, step));
    tree.show(now.outcomes, step.node.node);
    source.show(now, place === end && end > 0 ? null : step.node);
    controls.show(place, timer !== null, words.textContent);
    table.show(place);
  }
  function stop() {
    clearInterval(timer);
    timer = null;
  }
  function go(step) {
    stop();
    const before = place;
    place = Math.min(end, Math.max(0, step));
    if (place !== before) show();
    else controls.show(place, false, words.textContent);
  }
  function toggle() {
    if (timer !== null) return go(place);
    if (place === end) place = 0;
    timer = setInterval(() => {
      place += 1;
      if (place >= end) stop();
      show();
    }, PACE);
    return show();
  }
  function key(name) {
    const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: end };
    if (name === " ") toggle();
    else if (name in moves) go(moves[name]);
    else return false;
    return true;
  }

  show();
  const stage = el("div", { class: "stage" }, controls.element, words, compared, tree.element);
  return { element: el("div", {}, heading, stage, source.element, legend(), table.element), stop, key };
}

function head(cited, answer) {
  const { evidence } = cited;
  const query = answer.rounds[cited.round - 1].query;
  const facts = [
    evidence.modality,
    kept(evidence),
    `${number(evidence.tokens_in)} → ${number(evidence.tokens_kept)} tokens (${share(evidence.tokens_kept, evidence.tokens_in)})`,
  ];
  if (evidence.truncated) facts.push("part of it did not reach the encoder");
  return el(
    "header",
    { class: "item-head" },
    el("h2", { id: "replay-title", tabindex: -1 }, `[${cited.number}] `, quoted(titled(cited))),
    el("p", { class: "facts" }, facts.join(" · ")),
    el("p", { class: "facts" }, `Round ${cited.round} compares it with `, quoted(query, { class: "query" }, "q")),
  );
}

function controlsOf(end, { go, by, play }) {
  const button = (name, label, act) => el("button", { type: "button", "aria-label": label, onclick: act }, icon(name));
  const playing = button("play", "Play", play);
  const scrubber = el("input", { type: "range", min: 0, max: end, step: 1, "aria-label": "Step" });
  scrubber.addEventListener("input", () => go(Number(scrubber.value)));
  const first = button("first", "First step", () => go(0));
  const back = button("back", "Step back", () => by(-1));
  const next = button("next", "Step forward", () => by(1));
  const last = button("last", "Last step", () => go(end));
  const where = el("span", { class: "where" });
  const element = el(
    "div",
    { class: "controls" },
    el("div", { class: "buttons", role: "group", "aria-label": "Replay" }, first, back, playing, next, last),
    scrubber,
    where,
  );
  const show = (place, runs, words) => {
    scrubber.value = String(place);
    scrubber.setAttribute("aria-valuetext", `Step ${place + 1} of ${end + 1}. ${words}`);
    where.textContent = `${place + 1} / ${end + 1}`;
    playing.replaceChildren(icon(runs ? "pause" : "play"));
    playing.setAttribute("aria-label", runs ? "Pause" : "Play");
    // Disabled for the eye and the ear, but still in reach: a focused button that vanished would lose the keyboard.
    for (const one of [first, back]) one.setAttribute("aria-disabled", String(place === 0));
    for (const one of [next, last]) one.setAttribute("aria-disabled", String(place === end));
  };
  return { element, show };
}

/** A step in words. */
function told(cited, answer, { kind, node, parts }) {
  const name = span(cited, node.first, node.last);
  const [score] = scores(node.score);
  if (kind === "start") return `The whole item scores ${score}.`;
  if (kind === "split") {
    const entered = parts.filter((part) => part.outcome !== "dropped").length;
    return `${capital(name)} (${score}): ${entered} of ${parts.length} parts score at least as high, so the walk goes on there.`;
  }
  if (forced(cited, answer)) return `${capital(name)} (${score}): this question keeps tables whole.`;
  if (node.last - node.first === 1) return `${capital(name)} (${score}) has no smaller parts: kept.`;
  return `${capital(name)} (${score}): no part scores as high, so all of it is kept.`;
}

/** Whether an item was kept without a look at its parts. */
function forced(cited, answer) {
  return answer.tables_whole && cited.evidence.modality === "table";
}

/** The scores that a step compares, as bars on one scale for the whole item. */
function bars(cited, answer, walk, { kind, node, parts }) {
  const values = walk.nodes.map((one) => one.score);
  const [low, high] = [Math.min(0, ...values), Math.max(0.001, ...values)];
  const at = (value) => (value - low) / (high - low);
  const shown = scores(node.score, ...parts.map((part) => part.score));
  const line = (one, score, state, word) =>
    el(
      "div",
      { class: `bar ${state}` },
      el("span", { class: "name" }, capital(span(cited, one.first, one.last))),
      el("span", { class: "track", "aria-hidden": "true" }, placed(el("span", { class: "fill" }), ...[at(0), at(one.score)].sort((a, b) => a - b)), threshold()),
      el("span", { class: "score" }, score),
      el("span", { class: "fate" }, word),
    );
  const threshold = () => parts.length > 0 && placed(el("span", { class: "mark" }), at(node.score), at(node.score));
  const lines = [line(node, shown[0], "parent", kind === "kept" ? "kept" : kind === "split" ? "split" : "scored")];
  parts.forEach((part, place) => {
    const outcome = fate(kind, part);
    lines.push(line(part, shown[place + 1], outcome, outcome));
  });
  if (kind === "kept" && !parts.length && node.last - node.first > 1 && !forced(cited, answer)) {
    lines.push(el("p", { class: "note" }, "The scores of its parts are not in this trace."));
  }
  return lines;
}

/** Every comparison of the item, each leading to its step. */
function listing(cited, walk, go) {
  const all = comparisons(walk);
  const rows = all.map(({ step, parent, part, outcome }) => {
    const [above, below] = scores(parent.score, part.score);
    const jump = el("button", { type: "button", class: "link", onclick: () => go(step) }, `step ${step + 1}`);
    return el(
      "tr",
      { class: outcome },
      el("td", {}, jump),
      el("td", {}, span(cited, part.first, part.last)),
      el("td", { class: "score" }, below),
      el("td", {}, outcome === "entered" ? "≥" : "<"),
      el("td", { class: "score" }, above),
      el("td", {}, span(cited, parent.first, parent.last)),
      el("td", { class: "fate" }, outcome),
    );
  });
  const titles = ["", "part", "score", "", "score", "of", "outcome"];
  const table = el(
    "table",
    {},
    el("thead", {}, el("tr", {}, titles.map((title) => el(title ? "th" : "td", title ? { scope: "col" } : {}, title)))),
    el("tbody", {}, rows),
  );
  const element = el(
    "details",
    { class: "comparisons" },
    el("summary", {}, count(all.length, "comparison")),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Comparisons" }, table),
  );
  const show = (place) => rows.forEach((row, at) => row.classList.toggle("now", all[at].step === place));
  return { element: all.length ? element : null, show };
}

function legend() {
  const one = (tag, state, text) => el("li", {}, el(tag, { class: `run ${state}` }, text));
  return el(
    "div",
    { class: "legend" },
    el("ul", {}, one("mark", "kept", "kept"), one("s", "dropped", "dropped"), one("span", "open now", "looked at"), one("span", "open", "not decided")),
    el("p", { class: "keys" }, "Keys: ← → step, space plays, Home and End."),
  );
}
