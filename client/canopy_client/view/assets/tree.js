// The hierarchy as far as it was walked: a row a level, a block a node, as wide as its share of the item.

import { el, placed } from "./dom.js";
import { scores, span } from "./words.js";

/** Narrowest block, as a share of the width, that has room for its score. */
const ROOM = 0.11;

/**
 * A picture of the walk: its element, and a function that shows what is decided and where the walk stands.
 * It repeats what steps and comparisons say in words, so it is not read out and takes no focus.
 */
export function treeView(cited, walk, pick) {
  const total = cited.evidence.fragments;
  const levels = Array.from({ length: walk.depth + 1 }, () => el("div", { class: "level" }));
  const blocks = new Map();
  const stepOf = new Map(walk.steps.map((step, place) => [step.node.node, place]));
  for (const node of walk.nodes) {
    const shown = (node.last - node.first) / total >= ROOM ? scores(node.score)[0] : "";
    const title = `${span(cited, node.first, node.last)}: ${scores(node.score)[0]}`;
    const block = el("span", { class: "node", title }, el("span", {}, shown));
    // A dropped node was decided at its parent's step.
    const step = stepOf.get(node.node) ?? stepOf.get(node.parent) ?? 0;
    block.addEventListener("click", () => pick(step));
    blocks.set(node.node, placed(block, node.first / total, node.last / total));
    levels[node.depth].append(block);
  }
  const element = el("div", { class: "tree", "aria-hidden": "true" }, levels);
  const show = (outcomes, current) => {
    for (const [name, block] of blocks) {
      const outcome = outcomes.get(name) ?? "hidden";
      block.className = `node ${outcome}${name === current ? " now" : ""}`;
    }
  };
  return { element, show };
}

/** The few pixels in a list that show which parts of an item were kept. */
export function strip(evidence) {
  const bar = el("span", { class: "strip", "aria-hidden": "true" });
  for (const region of evidence.regions) {
    bar.append(placed(el("span"), region.first / evidence.fragments, region.last / evidence.fragments));
  }
  return bar;
}
