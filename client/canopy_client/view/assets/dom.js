// Elements from plain values. Text only ever becomes a text node, so what an item says can never act.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties and children; strings become text, and null or false is left out. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    made.append(typeof child === "string" ? visible(child) : child);
  }
  return made;
}

// Control characters but for tab and line feed, and the marks that make text run another way than it is written.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Text in which nothing is hidden: what would not show, or would turn what does, stands as its number. */
export function visible(text) {
  return text.replace(UNSEEN, (mark) => `‹U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

/** Text of a trace: isolated, so that its direction does not turn what stands around it. */
export function quoted(text, properties = {}, tag = "bdi") {
  return el(tag, { dir: "auto", ...properties }, text);
}

/** Text for a screen reader alone. */
export function spoken(text) {
  return el("span", { class: "spoken" }, text);
}

const PATHS = {
  first: "M6 5v14M19 5l-9 7 9 7z",
  back: "M17 5l-9 7 9 7z",
  play: "M8 5l11 7-11 7z",
  pause: "M8 5v14M16 5v14",
  next: "M7 5l9 7-9 7z",
  last: "M18 5v14M5 5l9 7-9 7z",
};

/** A control's picture; what the control does is said by its label. */
export function icon(name) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", "0 0 24 24");
  picture.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  picture.append(path);
  return picture;
}

/** A block that stands from one share of its parent's width to another, both from 0 to 1. */
export function placed(element, from, to) {
  element.style.left = `${from * 100}%`;
  element.style.width = `${(to - from) * 100}%`;
  return element;
}
