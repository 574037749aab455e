// Numbers, spans and outcomes in words.

const UNITS = { text: "sentence", table: "row", video: "segment", image: "image" };

const STOPS = {
  sufficient: "the critic found the evidence sufficient",
  max_rounds: "the last round was searched",
  no_items: "nothing was retrieved",
  no_new_item: "a round found nothing new",
  repeated_query: "the critic asked for what was already searched",
  empty_query: "the critic named no further query",
  critic_failed: "the critic gave no usable answer",
  retrieval_failed: "a later search failed",
  compress_failed: "the evidence server failed in a later round",
  reader_failed: "the reader gave no answer",
  deadline: "time was up",
};

export function stopped(stop) {
  return STOPS[stop];
}

export function number(value) {
  return value.toLocaleString("en");
}

export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function seconds(value) {
  return value < 0.1 ? `${(value * 1000).toFixed(0)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

export function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "–";
}

/** Scores that are compared, with as many digits as tell them apart. */
export function scores(...values) {
  for (let digits = 3; digits < 6; digits += 1) {
    const shown = values.map((value) => value.toFixed(digits));
    if (new Set(shown).size === new Set(values).size) return shown;
  }
  return values.map((value) => value.toFixed(6));
}

/** Milliseconds as minutes and seconds, with hours where there are any. */
export function clock(milliseconds) {
  const total = Math.floor(milliseconds / 1000);
  const [hours, minutes, rest] = [Math.floor(total / 3600), Math.floor(total / 60) % 60, total % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** A run of an item's fragments in words: "sentences 1–4", "row 2", "0:30–1:00". */
export function span(cited, first, last) {
  const { modality, fragments } = cited.evidence;
  if (modality === "image") return "the image";
  if (modality === "video" && cited.original) {
    const edges = cited.original.edges;
    return `${clock(edges[first])}–${clock(edges[last])}`;
  }
  const unit = UNITS[modality];
  if (fragments === 1) return `the only ${unit}`;
  return last - first === 1 ? `${unit} ${last}` : `${unit}s ${first + 1}–${last}`;
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** What was kept of an item: "1 of 8 sentences". */
export function kept(evidence) {
  const unit = UNITS[evidence.modality];
  if (evidence.fragments === 1) return `1 ${unit}, kept`;
  return `${number(evidence.kept_fragments)} of ${count(evidence.fragments, unit)}`;
}

export function titled(cited) {
  return cited.evidence.title || cited.evidence.item_id;
}
