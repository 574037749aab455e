// The question with its answer and what they cost, and the rounds with what each found.

import { el, quoted, spoken } from "./dom.js";
import { strip } from "./tree.js";
import { capital, count, kept, number, seconds, share, stopped, titled } from "./words.js";

/** Question, answer and totals. A citation in the answer opens its item. */
export function headView(answer, open) {
  return el(
    "header",
    { class: "head" },
    el("p", { class: "eyebrow" }, "Question"),
    el("h1", { dir: "auto" }, answer.question),
    el("p", { class: "answer", dir: "auto" }, answer.text ? cite(answer, open) : "No answer."),
    answer.error && el("p", { class: "failure" }, "What failed: ", quoted(answer.error)),
    totals(answer),
  );
}

/** The answer's text, with each number that names an item as a button. */
function cite(answer, open) {
  return answer.text.split(/(\[\d{1,4}\])/).map((part) => {
    const found = /^\[(\d+)\]$/.exec(part);
    const cited = found && answer.evidence.find((one) => one.number === Number(found[1]));
    if (!cited) return part;
    const label = `Item ${cited.number}: ${titled(cited)}`;
    return el("button", { type: "button", class: "cite", "aria-label": label, onclick: () => open(cited) }, part);
  });
}

function totals(answer) {
  const { tokens_before: before, tokens_after: after, tokens_read: read } = answer;
  const calls = Object.values(answer.llm_calls).reduce((sum, one) => sum + one, 0);
  const roles = Object.entries(answer.llm_calls).map(([role, times]) => `${role} ${times}`);
  const dropped = answer.evidence.filter((one) => one.regions_shown < one.evidence.regions.length).length;
  const bar = el("span", { class: "meter", "aria-hidden": "true" }, el("span"));
  bar.firstChild.style.width = `${before ? Math.min(100, (100 * after) / before) : 0}%`;
  const note = dropped ? `${number(read)} read: ${count(dropped, "item")} over the budget` : `${share(after, before)} of what was retrieved`;
  const fact = (name, value, ...more) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), more));
  return el(
    "dl",
    { class: "totals" },
    fact("Reader tokens", `${number(before)} → ${number(after)}`, bar, el("small", {}, note)),
    fact("Rounds", number(answer.rounds.length), el("small", {}, capital(stopped(answer.stop)))),
    fact("Model calls", number(calls), el("small", {}, roles.join(", "))),
    fact("Time", seconds(answer.seconds), el("small", {}, `reader ${seconds(answer.reader_seconds)}`)),
  );
}

/** The rounds: each with its query, what it found and the critic's verdict. */
export function roundsView(answer, open) {
  const rows = new Map();
  const rounds = answer.rounds.map((round) => roundView(answer, round, rows, open));
  const show = (cited) => {
    for (const [number_, buttons] of rows) {
      for (const one of buttons) one.setAttribute("aria-pressed", String(number_ === cited.number));
    }
  };
  return { element: el("section", { id: "rounds", class: "rounds", "aria-label": "Rounds", tabindex: -1 }, rounds), show };
}

function roundView(answer, round, rows, open) {
  const hits = round.hits.map((hit) => hitView(answer, round, hit, rows, open));
  const stages = Object.entries(round.seconds).map(([stage, time]) => `${stage} ${seconds(time)}`);
  const where = round.corpora.length ? `, searched ${round.corpora.join(", ")}` : "";
  return el(
    "article",
    { class: "round" },
    el("h2", {}, `Round ${round.number}`),
    el("p", { class: "facts" }, "Query: ", quoted(round.query, { class: "query" }, "q"), where),
    hits.length ? el("ol", { class: "hits" }, hits) : el("p", { class: "note" }, "Nothing was found."),
    verdictView(answer, round),
    stages.length > 0 && el("p", { class: "facts small" }, stages.join(" · ")),
  );
}

function hitView(answer, round, hit, rows, open) {
  const cited = answer.evidence.find((one) => one.evidence.item_id === hit.item_id);
  const name = quoted(hit.title || hit.item_id, { class: "title" });
  const found = el("span", { class: "facts" }, `${hit.modality} · retrieved at ${hit.score.toFixed(3)}`);
  if (!cited) return el("li", { class: "hit" }, name, found, el("span", { class: "facts" }, "not compressed"));
  const { evidence } = cited;
  const notes = [`${number(evidence.tokens_in)} → ${number(evidence.tokens_kept)} tokens`, kept(evidence)];
  if (!hit.new) notes.splice(0, 2, `seen in round ${cited.round}`);
  if (hit.new && cited.regions_shown < evidence.regions.length) notes.push("over the reader's budget");
  const button = el(
    "button",
    { type: "button", class: hit.new ? "hit" : "hit seen", "aria-pressed": "false", onclick: () => open(cited) },
    el("span", { class: "number" }, `[${cited.number}]`),
    name,
    cited.cited && el("span", { class: "badge" }, "cited"),
    spoken(". "),
    found,
    hit.new && strip(evidence),
    el("span", { class: "facts" }, notes.join(" · ")),
  );
  rows.set(cited.number, [...(rows.get(cited.number) ?? []), button]);
  return el("li", {}, button);
}

function verdictView(answer, round) {
  const { verdict } = round;
  if (!verdict) return el("p", { class: "note" }, unasked(answer, round));
  const fields = [
    ["Reasoning", verdict.rationale],
    ["Best answer", verdict.answer],
    ["Missing", verdict.missing],
    ["Next query", verdict.query],
  ];
  return el(
    "div",
    { class: verdict.sufficient ? "verdict enough" : "verdict" },
    el("h3", {}, verdict.sufficient ? "Critic: the evidence is sufficient" : "Critic: not sufficient"),
    el("dl", {}, fields.filter(([, text]) => text).map(([name, text]) => [el("dt", {}, name), quoted(text, {}, "dd")])),
  );
}

function unasked(answer, round) {
  if (round.number < answer.rounds.length) return "The critic was not heard in this round.";
  if (answer.stop === "max_rounds") return "The critic is not asked in the last round.";
  return `The search ended here: ${stopped(answer.stop)}.`;
}
