// The page: one question at a time, its rounds beside the replay of the item that is chosen.

import { el, quoted } from "./dom.js";
import { headView, roundsView } from "./loop.js";
import { player } from "./player.js";
import { count } from "./words.js";

const trace = JSON.parse(document.getElementById("trace").textContent);
const root = document.getElementById("page");
const wide = matchMedia("(min-width: 60rem)");
let current = null;

function show(answer) {
  current?.stop();
  current = null;
  const replay = el("section", { id: "replay", class: "replay", "aria-label": "Replay", tabindex: 0 });
  const open = (cited, focus = true) => {
    current?.stop();
    current = player(cited, answer);
    replay.replaceChildren(current.element, el("a", { class: "return", href: "#rounds" }, "Back to the rounds"));
    rounds.show(cited);
    // Beside the list on a wide screen the list keeps the focus, so that the next item is one key away.
    if (focus && !wide.matches) document.getElementById("replay-title").focus();
  };
  const rounds = roundsView(answer, open);
  const main = el("main", {}, headView(answer, open), el("div", { class: "columns" }, rounds.element, replay));
  root.replaceChildren(top(answer), main, foot());
  document.title = `${answer.question} – CANOPY trace`;
  const first = answer.evidence.find((one) => one.cited) ?? answer.evidence[0];
  if (first) open(first, false);
  else replay.append(el("p", { class: "note" }, "No evidence was found, so there is nothing to replay."));
}

function top(answer) {
  const questions = trace.answers.map((one, place) =>
    el(
      "button",
      {
        type: "button",
        "aria-current": one === answer ? "true" : null,
        onclick: () => {
          show(one);
          document.querySelectorAll("nav button")[place].focus();
        },
      },
      `${place + 1}. `,
      quoted(one.question),
    ),
  );
  const name = el("p", { class: "brand" }, el("b", {}, "CANOPY"), " trace");
  return el("div", { class: "top" }, name, questions.length > 1 && el("nav", { "aria-label": "Questions" }, questions));
}

function foot() {
  const facts = `${count(trace.answers.length, "question")} · ${trace.model} · prompts ${trace.prompts} · ${trace.created}`;
  const rows = Object.entries(trace.settings).map(([name, value]) => [el("dt", {}, name), quoted(value, {}, "dd")]);
  return el("footer", {}, quoted(facts, {}, "p"), el("details", {}, el("summary", {}, "Settings"), el("dl", {}, rows)));
}

/** Keys step through the replay from anywhere, except where they already mean something. */
function pressed(event) {
  if (!current || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const place = event.target;
  const acts = event.key === " " && place.closest?.("button, summary, a");
  const moves = event.key !== " " && place.closest?.("input, .scroll");
  if (acts || moves) return;
  if (event.key === "Home" || event.key === "End") {
    // Elsewhere these move through the page, as a reader expects.
    if (place !== document.body && !place.closest?.("#replay")) return;
  }
  if (current.key(event.key)) event.preventDefault();
}

document.addEventListener("keydown", pressed);
show(trace.answers[0]);
