// The walk over one item's hierarchy, as steps: the root is scored, then each node that was entered is looked at.
// A node is split where parts of it score at least as high as it does, and kept where none does.

/** The steps of a traced item, or null where it has no trace. */
export function walkOf(cited) {
  const trace = cited.evidence.trace;
  if (!trace) return null;
  const nodes = new Map(trace.nodes.map((node) => [node.node, node]));
  const parts = new Map(trace.nodes.map((node) => [node.node, []]));
  for (const node of trace.nodes) if (node.parent >= 0) parts.get(node.parent).push(node);
  const root = trace.nodes[0];
  const steps = [{ kind: "start", node: root, parts: [] }];
  for (const node of trace.nodes) {
    // Parts of a kept node were looked at too, but nothing below it was decided.
    const above = nodes.get(node.parent);
    if (node.outcome === "dropped" || (above && above.outcome !== "split")) continue;
    steps.push({ kind: node.outcome, node, parts: parts.get(node.node) });
  }
  return { nodes: trace.nodes, byNumber: nodes, steps, depth: Math.max(...trace.nodes.map((node) => node.depth)) };
}

/** What has been decided after a step: the outcome of each node reached, and the fragments' states. */
export function decided(walk, place, fragments) {
  const outcomes = new Map([[walk.nodes[0].node, "open"]]);
  const states = new Array(fragments).fill("open");
  const owners = new Array(fragments).fill(-1);
  const mark = (node, state) => {
    states.fill(state, node.first, node.last);
    owners.fill(node.node, node.first, node.last);
  };
  for (const { kind, node, parts } of walk.steps.slice(0, place + 1)) {
    if (kind === "kept") {
      outcomes.set(node.node, "kept");
      for (const part of parts) outcomes.set(part.node, "lower");
      mark(node, "kept");
    } else if (kind === "split") {
      outcomes.set(node.node, "split");
      for (const part of parts) {
        outcomes.set(part.node, part.outcome === "dropped" ? "dropped" : "open");
        if (part.outcome === "dropped") mark(part, "dropped");
      }
    }
  }
  return { outcomes, states, owners };
}

/** What an item without a trace ended as. */
export function ended(evidence) {
  const states = new Array(evidence.fragments).fill("dropped");
  const owners = new Array(evidence.fragments).fill(-1);
  evidence.regions.forEach((region, place) => {
    states.fill("kept", region.first, region.last);
    owners.fill(place, region.first, region.last);
  });
  return { states, owners };
}

/** Neighbouring fragments that look alike, as runs, so that a long item is a few elements. */
export function runs({ states, owners }, focus) {
  const found = [];
  const inside = (place) => focus !== null && place >= focus.first && place < focus.last;
  states.forEach((state, place) => {
    const owner = state === "kept" ? owners[place] : -1;
    const now = inside(place);
    const before = found.at(-1);
    if (before && before.state === state && before.owner === owner && before.now === now) before.last = place + 1;
    else found.push({ first: place, last: place + 1, state, owner, now });
  });
  return found;
}

/** All comparisons of the walk, in order, each with the step that shows it. */
export function comparisons(walk) {
  return walk.steps.flatMap(({ kind, node, parts }, step) =>
    parts.map((part) => ({ step, parent: node, part, outcome: fate(kind, part) })),
  );
}

/** What a comparison led to, by the outcome: scores in a trace are rounded, and two may look equal that were not. */
export function fate(kind, part) {
  if (kind === "kept") return "lower";
  return part.outcome === "dropped" ? "dropped" : "entered";
}
