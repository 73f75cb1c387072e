// The mosaic: a card for each node, a strip for each GPU, a part for each instance or share.

import { gib, matcher, owner, slowness, workload } from "./fleet.js";

const COLORS = 12;
const DISTINCT = 7; // the first ones, which differ most
const HIDDEN = "other namespaces";
const SHOWN = ".node:not([hidden]) .gpu:not([hidden])";
const BY_NAME = new Intl.Collator("en", { numeric: true }).compare;

// Gives each owner a color, by the names of all that are shown first. It stays until the page is loaded again.
export class Palette {
  #numbers = new Map();

  number(name) {
    return name ? (this.#numbers.get(name) ?? hash(name) % COLORS) : "other";
  }

  // Takes all owners that are shown; returns whether any of them is new.
  assign(owners) {
    const names = [...new Set(owners)].filter(Boolean).sort();
    const newcomers = names.filter((name) => !this.#numbers.has(name));
    const given = new Set(this.#numbers.values());
    const shown = new Set(names.filter((name) => this.#numbers.has(name)).map((name) => this.#numbers.get(name)));
    const colors = names.length > DISTINCT ? COLORS : DISTINCT;
    for (const name of newcomers) {
      // One that nobody has had comes first: who had it may be shown again.
      const number = unlike(name, colors, given) ?? unlike(name, COLORS, given) ?? unlike(name, COLORS, shown);
      this.#numbers.set(name, number ?? hash(name) % COLORS);
      given.add(this.number(name));
      shown.add(this.number(name));
    }
    return newcomers.length > 0;
  }
}

// The first color from a name's own on that is not taken; undefined where all are.
function unlike(name, colors, taken) {
  for (let step = 0; step < colors; step += 1) {
    const number = (hash(name) + step) % colors;
    if (!taken.has(number)) return number;
  }
  return undefined;
}

// FNV-1a, 32 bits.
function hash(text) {
  let sum = 0x811c9dc5;
  for (let i = 0; i < text.length; i += 1) sum = Math.imul(sum ^ text.charCodeAt(i), 0x01000193) >>> 0;
  return sum;
}

export class Mosaic {
  #cards = new Map();
  #shown = new Map(); // how many GPUs of each card are shown
  #drawn = new WeakMap(); // what each strip was drawn from
  #focus = "";

  constructor(root, palette, choose) {
    this.root = root;
    this.palette = palette;
    this.choose = choose;
    root.addEventListener("click", (event) => this.#chosen(event));
    root.addEventListener("keydown", (event) => this.#move(event));
    root.addEventListener("focusin", (event) => this.#focused(event.target));
    root.addEventListener("pointerover", (event) => this.#pointed(event.target));
  }

  // Draws what changed of the nodes of these names, of all of them without names.
  draw(fleet, filters, selected, names) {
    const shows = matcher(filters);
    const order = [...fleet.nodes.keys()].sort(BY_NAME);
    for (const name of names ?? order) {
      const node = fleet.nodes.get(name);
      if (!node) continue;
      // The card stays: a new one would take a frame more until the browser knows that it is on the screen.
      if (!this.#cards.has(name)) this.#cards.set(name, empty());
      this.#card(this.#cards.get(name), node, shows, filters);
    }
    for (const [name, card] of this.#cards) {
      if (fleet.nodes.has(name)) continue;
      card.remove();
      this.#cards.delete(name);
      this.#shown.delete(name);
    }
    const cards = order.map((name) => this.#cards.get(name));
    cards.forEach((card, place) => {
      // Only what is not in its place: who is taken out loses the focus.
      if (this.root.children[place] !== card) this.root.insertBefore(card, this.root.children[place] ?? null);
    });
    this.select(selected);
    const count = order.reduce((sum, name) => sum + fleet.nodes.get(name).gpus.length, 0);
    this.root.dataset.density = count > 240 ? "small" : count > 48 ? "medium" : "large";
    return [...this.#shown.values()].reduce((sum, shown) => sum + shown, 0);
  }

  select(selected) {
    for (const each of this.root.querySelectorAll('[aria-current="true"]')) each.removeAttribute("aria-current");
    const chosen = this.root.querySelector(`[data-gpu="${CSS.escape(selected)}"]`);
    chosen?.setAttribute("aria-current", "true");
    const stops = [...this.root.querySelectorAll('.gpu[tabindex="0"]')];
    const known = [...stops, chosen, this.root.querySelector(`[data-gpu="${CSS.escape(this.#focus)}"]`)];
    const stop = known.find(isShown) ?? this.root.querySelector(SHOWN);
    for (const each of stops) each.tabIndex = -1;
    if (stop) stop.tabIndex = 0;
  }

  // Scrolls to a GPU, and returns whether it is shown.
  reveal(gpu) {
    const strip = this.root.querySelector(`[data-gpu="${CSS.escape(gpu)}"]`);
    if (!isShown(strip)) return false;
    strip.scrollIntoView({ block: "nearest" });
    return true;
  }

  #card(card, node, shows, filters) {
    const [top, strips] = card.children;
    const title = element("h2", "", node.name);
    title.title = node.name;
    const models = [...new Set(node.gpus.map((gpu) => gpu.model))].join(", ");
    const about = element("p", "about", [models, node.policy && `policy ${node.policy}`].filter(Boolean).join(" · "));
    const head = element("div", "head");
    head.append(title, about);
    if (!node.ready) head.append(element("span", "badge bad", "not ready"));
    renew(top, head, ...(node.problem ? [element("p", "problem", node.problem)] : []));
    const present = new Set(node.gpus.map((gpu) => identity(node, gpu)));
    for (const strip of [...strips.children]) {
      if (present.has(strip.dataset.gpu)) continue;
      if (strip === document.activeElement) (strip.nextElementSibling ?? strip.previousElementSibling)?.focus({ preventScroll: true });
      strip.remove();
    }
    let visible = 0;
    node.gpus.forEach((gpu, place) => {
      const strip = this.#strip(strips, place, node, gpu, filters);
      strip.hidden = !shows(node, gpu);
      visible += strip.hidden ? 0 : 1;
    });
    while (strips.children.length > node.gpus.length) strips.lastChild.remove();
    card.hidden = visible === 0 && (node.gpus.length > 0 || Object.values(filters).some(Boolean));
    this.#shown.set(node.name, visible);
  }

  // Returns the strip of a GPU at its place among those of its node, drawn anew where anything of it changed.
  #strip(strips, place, node, gpu, filters) {
    const there = strips.children[place];
    const old = there?.dataset.gpu === identity(node, gpu) ? there : null;
    const colors = gpu.parts.flatMap((part) => part.pods.map((pod) => this.palette.number(owner(pod, filters.color))));
    const drawn = JSON.stringify([gpu, colors, filters.namespace]);
    if (old && this.#drawn.get(old) === drawn) return old;
    const strip = this.#made(node, gpu, filters);
    this.#drawn.set(strip, drawn);
    const focused = old && old === document.activeElement;
    if (old) old.replaceWith(strip);
    else strips.insertBefore(strip, there ?? null);
    if (focused) strip.focus({ preventScroll: true });
    return strip;
  }

  #made(node, gpu, filters) {
    const strip = element("button", "gpu");
    strip.type = "button";
    strip.tabIndex = -1;
    strip.dataset.gpu = identity(node, gpu);
    strip.setAttribute("aria-label", describe(node, gpu));
    if (gpu.contention.length) strip.classList.add("slow");
    if (gpu.problems.length) strip.classList.add("bad");
    const index = element("span", "index", String(gpu.index));
    const bar = element("span", "bar");
    for (const drawn of [index, bar]) drawn.setAttribute("aria-hidden", "true");
    strip.append(index);
    for (const part of gpu.parts) bar.append(this.#part(part, filters));
    const used = gpu.parts.filter((part) => part.pods.length);
    if (used.length > 1) bar.append(count(used, gpu.width));
    strip.append(bar);
    return strip;
  }

  #part(part, filters) {
    const drawn = element("span", `part ${part.state}`);
    drawn.style.flexGrow = part.size;
    if (!part.exists) drawn.classList.add("planned");
    if (part.idle) drawn.classList.add("idle");
    const names = [];
    const shades = [];
    for (const pod of part.pods) {
      const color = this.palette.number(owner(pod, filters.color));
      const strand = element("span", `strand c-${color}`);
      if (filters.namespace && pod.namespace !== filters.namespace) strand.classList.add("aside");
      names.push(pod.pod ? workload(pod) : HIDDEN);
      shades.push(`c-${color}`);
      drawn.append(strand);
    }
    const words = element("span", "words");
    const shade = part.idle ? shades[0] : "";
    if (names.length) words.append(element("b", shade, names.length > 1 ? `${names[0]} +${names.length - 1}` : names[0]));
    if (part.label) words.append(label(part.label, shade));
    if (names.length || part.label) drawn.append(words);
    return drawn;
  }

  #chosen(event) {
    const strip = event.target.closest(".gpu");
    if (strip) this.choose(strip.dataset.gpu);
  }

  #focused(target) {
    if (!target.matches?.(".gpu")) return;
    for (const each of this.root.querySelectorAll('.gpu[tabindex="0"]')) each.tabIndex = -1;
    target.tabIndex = 0;
    this.#focus = target.dataset.gpu;
  }

  // A tooltip for the one GPU that is pointed at: a thousand of them would make the page large.
  #pointed(target) {
    const strip = target.closest(".gpu");
    if (strip) strip.title = strip.getAttribute("aria-label");
    for (const each of this.root.querySelectorAll(".gpu[title]")) if (each !== strip) each.removeAttribute("title");
  }

  // Arrows go from GPU to GPU; the mosaic is one stop of the Tab key.
  #move(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 8, PageUp: -8 }[event.key];
    if (step === undefined && event.key !== "Home" && event.key !== "End") return;
    const strips = [...this.root.querySelectorAll(SHOWN)];
    const place = strips.indexOf(document.activeElement);
    if (place < 0) return;
    event.preventDefault();
    const next = event.key === "Home" ? 0 : event.key === "End" ? strips.length - 1 : place + step;
    strips[Math.max(0, Math.min(strips.length - 1, next))].focus();
  }
}

// How many pods a GPU has, where the largest of their parts is too narrow for a name: page.css knows the width.
function count(parts, width) {
  const made = element("span", "count");
  made.style.setProperty("--share", Math.max(...parts.map((part) => part.size)) / width);
  made.append(element("b", "", `${parts.reduce((sum, part) => sum + part.pods.length, 0)} pods`));
  return made;
}

// A profile is cut to its compute slices where there is no room for its memory.
function label(text, shade) {
  const [short, dot, rest] = text.includes("g.") ? text.split(/(\.)(.*)/) : [text];
  const made = element("span", shade, short);
  if (dot) made.append(element("i", rest.length > 3 ? "long" : "", dot + rest));
  return made;
}

// What a screen reader says of a GPU, and its tooltip.
function describe(node, gpu) {
  const parts = gpu.parts.map((part) => {
    const names = part.pods.map((pod) => (pod.pod ? `${pod.namespace}/${pod.pod}` : HIDDEN)).join(", ");
    const state = part.state === "allocated" ? names : { unused: "unused", desired: "to be created", free: "free" }[part.state];
    return [part.label, state, part.idle && "idle", part.state === "allocated" && !part.exists && "to be created"]
      .filter(Boolean)
      .join(" ");
  });
  const known = [...gpu.problems, ...gpu.contention.map(slowness)].map((each) => `; ${each}`).join("");
  return `${node.name}, GPU ${gpu.index}, ${gpu.model}, ${gib(gpu.allocatedMib)} of ${gib(gpu.memoryMib)} allocated${known}: ${parts.join("; ")}`;
}

// Draws what changed of a part of the page anew, and keeps the focus on the button or link that had it.
export function renew(parent, ...content) {
  const next = parent.cloneNode(false);
  next.append(...content);
  if (next.isEqualNode(parent)) return;
  const { className, localName } = document.activeElement;
  const href = document.activeElement.getAttribute("href");
  const focused = parent.contains(document.activeElement);
  parent.replaceChildren(...next.childNodes);
  if (!focused) return;
  const successor = [...parent.querySelectorAll(localName)].find((each) => each.className === className && each.getAttribute("href") === href);
  (successor ?? document.getElementById("gpus")).focus({ preventScroll: true });
}

function identity(node, gpu) {
  return `${node.name}/${gpu.index}`;
}

function isShown(strip) {
  return Boolean(strip?.matches(SHOWN));
}

function empty() {
  const card = element("article", "node");
  card.append(element("div"), element("div", "strips"));
  return card;
}

// A link within the page: it chooses a GPU, or sets a filter.
export function link(text, query) {
  const made = element("a", "", text);
  made.href = `?${new URLSearchParams(query)}`;
  return made;
}

export function element(name, classes = "", text = "") {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text) made.textContent = text;
  return made;
}
