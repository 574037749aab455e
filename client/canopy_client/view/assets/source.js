// An item as it reads, its parts marked kept, dropped or still open.

import { clock } from "./words.js";
import { el, placed, quoted, spoken } from "./dom.js";
import { runs } from "./walk.js";

const TAGS = { kept: "mark", dropped: "s", open: "span" };
const WORDS = { kept: "kept", dropped: "dropped", open: "" };

/** A view of the item: its element, and a function that shows what is decided and where the walk stands. */
export function sourceView(cited) {
  if (!cited.original) return keptOnly(cited);
  const { item, edges } = cited.original;
  const draw = { text: textRuns, table: tableRows, video: timeline, image: picture }[item.modality](item, edges);
  const body = el("div", { class: `source source-${item.modality}` });
  const show = (state, focus) => {
    const parts = draw(state, focus);
    // What is there already stays: taken out and put back, it would lose its place and the focus.
    if (parts.some((part, place) => body.childNodes[place] !== part)) body.replaceChildren(...parts);
  };
  return { element: body, show };
}

/** Where the item itself is not in the trace: what was kept of it. */
function keptOnly(cited) {
  const note = el("p", { class: "note" }, "The item itself is not in this trace, so only what was kept of it is shown.");
  const body = cited.evidence.regions.map((region) => quoted(region.text, { class: "run kept" }, "mark"));
  return { element: el("div", { class: "source source-text" }, note, body), show: () => {} };
}

function classes(...names) {
  return names.filter(Boolean).join(" ");
}

/** Edges count code points and strings count UTF-16 units: the same places in the latter. */
function offsets(text, edges) {
  const found = [];
  let [points, units] = [0, 0];
  for (const edge of edges) {
    for (; points < edge && units < text.length; points += 1) units += text.codePointAt(units) > 0xffff ? 2 : 1;
    found.push(units);
  }
  found[found.length - 1] = text.length;
  return found;
}

function textRuns(item, edges) {
  const places = offsets(item.text, edges);
  if (!item.text) return () => [el("p", { class: "note" }, "This item has no text.")];
  return (state, focus) => [
    el(
      "p",
      { dir: "auto" },
      runs(state, focus).map((run) =>
        el(
          TAGS[run.state],
          { class: classes("run", run.state, run.now && "now") },
          item.text.slice(places[run.first], places[run.last]),
        ),
      ),
    ),
  ];
}

function tableRows(item) {
  const width = item.columns.length;
  const cells = (row, tag) =>
    Array.from({ length: width }, (_, place) => quoted(row[place] ?? "", tag === "th" ? { scope: "col" } : {}, tag));
  const heads = [...(item.header_rows ?? []), item.columns].map((row) =>
    el("tr", {}, el("td", { class: "state" }), cells(row, "th")),
  );
  const rows = item.rows.map((row) => el("tr", {}, el("td", { class: "state" }), cells(row, "td")));
  const table = el("table", {}, item.caption && quoted(item.caption, {}, "caption"));
  table.append(el("thead", {}, heads), el("tbody", {}, rows));
  const empty = !rows.length && el("p", { class: "note" }, "This table has no rows.");
  const shown = [el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, table), empty];
  // Rows are made once and marked again at each step: a table may have thousands, and most of them stay as they are.
  return ({ states }, focus) => {
    rows.forEach((row, place) => {
      const now = focus !== null && place >= focus.first && place < focus.last;
      const looks = classes(states[place], now && "now");
      if (row.className === looks) return;
      row.className = looks;
      row.firstChild.replaceChildren(WORDS[states[place]] || spoken("open"));
    });
    return shown.filter(Boolean);
  };
}

function timeline(item, edges) {
  const length = edges.at(-1) || 1;
  const segments = edges.length - 1;
  const at = (time) => {
    const behind = edges.findIndex((edge) => edge > time);
    return behind < 0 ? segments - 1 : Math.max(0, behind - 1);
  };
  const cues = (item.segments ?? [])
    .map(({ start, end, text }) => ({ start: Math.round(start * 1000), end: Math.round(end * 1000), text }))
    .filter((cue) => cue.text.trim())
    .sort((left, right) => left.start - right.start || left.end - right.end)
    .map((cue) => ({ ...cue, first: at(cue.start), last: at(Math.max(cue.end - 1, cue.start)) + 1 }));
  return (state, focus) => {
    const bar = el("div", { class: "timeline", "aria-hidden": "true" });
    for (const run of runs(state, focus)) {
      const block = el("span", { class: classes(run.state, run.now && "now") });
      bar.append(placed(block, edges[run.first] / length, edges[run.last] / length));
    }
    const ends = el("div", { class: "ends", "aria-hidden": "true" }, el("span", {}, "0:00"), el("span", {}, clock(length)));
    return [bar, ends, el("ol", { class: "cues" }, cues.map((cue) => cueLine(cue, state, focus)))];
  };
}

/** A line of a transcript belongs to every segment that it reaches into, and is kept with any of them. */
function cueLine(cue, { states }, focus) {
  const own = states.slice(cue.first, cue.last);
  const state = own.includes("kept") ? "kept" : own.includes("open") ? "open" : "dropped";
  const now = focus !== null && cue.first < focus.last && cue.last > focus.first;
  const time = el("span", { class: "time" }, clock(cue.start));
  return el("li", {}, time, quoted(cue.text, { class: classes("run", state, now && "now") }, TAGS[state]));
}

const pictures = JSON.parse(document.getElementById("pictures").textContent);

function picture(item) {
  const source = Object.hasOwn(pictures, item.uri ?? "") ? pictures[item.uri] : null;
  return ({ states }) => [
    el(
      "figure",
      { class: states[0] },
      source
        ? el("img", { src: source, alt: item.caption ?? "" })
        : el("div", { class: "frame" }, el("span", {}, "image"), item.uri && quoted(item.uri, { class: "uri" })),
      el("figcaption", {}, WORDS[states[0]] && el("b", {}, `${WORDS[states[0]]} `), quoted(item.caption || "No caption.")),
    ),
  ];
}
