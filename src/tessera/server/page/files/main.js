// The page: follows the server's events, keeps filters and the chosen GPU in the address, draws what changed.

import { Fleet, gib, isState, matcher, owner, totals } from "./fleet.js";
import { Mosaic, Palette, element, link, renew } from "./mosaic.js";
import { drawDetails, drawNotes, drawPending, drawModelServers, drawSizes, drawSlow } from "./panels.js";
import { Refused, follow } from "./stream.js";

const by = (id) => document.getElementById(id);
const FILTERS = ["namespace", "model", "state", "node", "color"];
const TOKEN = "tessera-token";
const VERSION = new URL(import.meta.url).pathname.split("/").at(-2);

const fleet = new Fleet();
const palette = new Palette();
const filters = Object.fromEntries(FILTERS.map((name) => [name, ""]));
let selected = "";
let unseen = ""; // the GPU to scroll to, once it is drawn
let viewer = { name: "", signedIn: false };
let following = null;
const mosaic = new Mosaic(by("fleet"), palette, choose);

// The address

function readAddress() {
  const given = new URLSearchParams(location.search);
  for (const name of FILTERS) filters[name] = given.get(name) ?? "";
  if (!isState(filters.state)) filters.state = "";
  selected = given.get("gpu") ?? "";
  unseen = selected;
}

// A selected GPU is a step that Back undoes, a filter is none.
function writeAddress({ step = false } = {}) {
  const given = new URLSearchParams();
  for (const name of FILTERS) if (filters[name]) given.set(name, filters[name]);
  if (selected) given.set("gpu", selected);
  const query = given.toString();
  const address = query ? `?${query}` : location.pathname;
  if (step) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

// Drawing

function options(select, values, every) {
  const wanted = ["", ...values]; // an empty list has this one too, and joined it is as empty
  if (select.value && !wanted.includes(select.value)) wanted.push(select.value);
  const chosen = filters[select.name];
  if (chosen && !wanted.includes(chosen)) wanted.push(chosen);
  const present = [...select.options].map((each) => each.value);
  if (!present.length || present.join("\n") !== wanted.join("\n")) {
    select.replaceChildren(...wanted.map((value) => new Option(value || every, value)));
  }
  select.value = chosen;
}

function drawFilters() {
  const form = by("filters");
  const models = new Set();
  for (const node of fleet.nodes.values()) for (const gpu of node.gpus) models.add(gpu.model);
  options(form.elements.namespace, fleet.rest.namespaces, "all");
  options(form.elements.model, [...models].sort(), "all");
  for (const name of ["state", "node", "color"]) {
    if (form.elements[name].value !== filters[name]) form.elements[name].value = filters[name];
  }
}

function drawTotals() {
  const sum = totals(fleet);
  const share = (part) => (sum.memory ? `${Math.round((100 * part) / sum.memory)} %` : "0 %");
  const pending = fleet.rest.pending.length + fleet.rest.pendingElsewhere;
  const toPending = element("a", "", String(pending));
  toPending.href = "#pending";
  const facts = [
    ["GPUs in use", `${sum.used} of ${sum.gpus}`],
    ["Memory allocated", `${share(sum.allocated)} of ${gib(sum.memory)}`],
    ["Allocated but idle", sum.idle && link(gib(sum.idle), { state: "idle" })],
    ["Pods pending", pending ? toPending : "0"],
    ["Slow GPUs", sum.slow && link(String(sum.slow), { state: "slow" })],
    ["Problems", sum.problems && link(String(sum.problems), { state: "problem" })],
  ];
  const items = facts.filter(([, value]) => value).map(([name, value]) => {
    const item = element("div", name === "Problems" || (name === "Pods pending" && pending) ? "alarm" : "");
    const shown = element("dd");
    shown.append(value);
    item.append(element("dt", "", name), shown);
    return item;
  });
  renew(by("totals"), ...items);
}

function drawLegend() {
  const shows = matcher(filters);
  const present = new Set();
  let others = false;
  let free = false;
  let unused = false;
  let idle = false;
  let planned = false;
  let slow = false;
  let problem = false;
  for (const node of fleet.nodes.values()) {
    for (const gpu of node.gpus) {
      if (!shows(node, gpu)) continue;
      slow ||= gpu.contention.length > 0;
      problem ||= gpu.problems.length > 0;
      for (const part of gpu.parts) {
        free ||= part.state === "free";
        unused ||= part.state === "unused";
        idle ||= part.idle;
        planned ||= !part.exists;
        for (const pod of part.pods) {
          const name = owner(pod, filters.color);
          if (name) present.add(name);
          else others = true;
        }
      }
    }
  }
  const item = (classes, name) => {
    const made = element("li");
    made.append(element("i", `swatch ${classes}`), element("span", "", name));
    return made;
  };
  const names = [...present].sort();
  const items = names.slice(0, 12).map((name) => item(`c-${palette.number(name)}`, name));
  if (names.length > 12) items.push(element("li", "", `and ${names.length - 12} more`));
  if (others) items.push(item("c-other", "other namespaces"));
  if (free) items.push(item("free", "free"));
  if (unused) items.push(item("unused", "unused instance"));
  if (planned) items.push(item("planned", "to be created"));
  if (idle) items.push(item("c-other idle", "idle"));
  if (slow) items.push(item("slow", "slow"));
  if (problem) items.push(item("problem", "with a problem"));
  renew(by("legend"), ...items);
}

function owners() {
  if (!filters.color) return fleet.rest.namespaces;
  const parts = [...fleet.nodes.values()].flatMap((node) => node.gpus).flatMap((gpu) => gpu.parts);
  return parts.flatMap((part) => part.pods).map((pod) => owner(pod, filters.color));
}

function draw(changed) {
  const names = palette.assign(owners()) ? undefined : changed;
  const shown = mosaic.draw(fleet, filters, selected, names);
  const count = [...fleet.nodes.values()].reduce((sum, node) => sum + node.gpus.length, 0);
  by("shown").textContent = shown === count ? "" : `${shown} of ${count} GPUs`;
  by("nothing").hidden = shown > 0;
  by("nothing").textContent = count ? "No GPU matches these filters. Choose others, or reset them." : nothing();
  drawTotals();
  drawLegend();
  drawFilters();
  drawPanels();
  if (unseen && mosaic.reveal(unseen)) unseen = "";
}

function nothing() {
  return fleet.nodes.size
    ? "No node has reported its GPUs yet."
    : "No node has a GPU yet. Nodes are shown once Tessera's agent or NVIDIA's GPU operator has labeled them.";
}

function drawPanels() {
  drawPending(by("pending"), fleet, filters);
  drawSlow(by("slow"), fleet.nodes.values(), filters);
  const servers = by("model-servers");
  drawModelServers(servers, fleet.rest, filters);
  // A small fleet leaves room below it; a large one would hide them.
  const roomy = by("fleet").dataset.density === "large";
  if (roomy && servers.parentElement !== by("below")) by("below").append(servers);
  if (!roomy && servers.parentElement !== by("side")) by("side").insertBefore(servers, by("sizes"));
  drawSizes(by("sizes"), fleet, filters);
  drawNotes(by("notes"), fleet.rest);
  const place = selected.lastIndexOf("/");
  const node = fleet.nodes.get(selected.slice(0, place));
  const gpu = node?.gpus.find((each) => String(each.index) === selected.slice(place + 1));
  const memoryMib = fleet.memoryMib.get(gpu?.uuid);
  drawDetails(by("details"), { node, gpu, activity: fleet.activity, memoryMib }, palette, filters, () => choose(""));
  by("columns").classList.toggle("wide", [...by("side").children].every((each) => each.hidden));
}

function choose(gpu) {
  const former = selected;
  selected = selected === gpu ? "" : gpu;
  unseen = "";
  writeAddress({ step: true });
  mosaic.select(selected);
  drawPanels();
  if (gpu) by("details").scrollTop = 0;
  if (!gpu && former) by("fleet").querySelector(`[data-gpu="${CSS.escape(former)}"]`)?.focus();
}

// Follows a link within the page: to a GPU, or to what a filter leaves; of the whole fleet, or of what is shown.
function go(query, { ofAll }) {
  if (query.has("gpu")) {
    selected = unseen = query.get("gpu");
    if (mosaic.reveal(selected)) unseen = "";
    mosaic.select(selected);
    drawPanels();
    by("details").scrollTop = 0;
  } else {
    for (const name of FILTERS) filters[name] = query.get(name) ?? (ofAll && name !== "color" ? "" : filters[name]);
    draw();
  }
  writeAddress({ step: true });
}

// Changes that come together are drawn together, before the next frame.
let waiting = null;
let everything = false;

function drawSoon(names) {
  if (!names) everything = true;
  if (waiting) {
    for (const name of names ?? []) waiting.add(name);
    return;
  }
  waiting = new Set(names ?? []);
  requestAnimationFrame(() => {
    const changed = everything ? undefined : [...waiting];
    waiting = null;
    everything = false;
    performance.mark("draw-begin");
    draw(changed);
    performance.measure("draw", "draw-begin");
  });
}

// Events

function say(words, state) {
  const status = by("connection");
  if (status.textContent !== words) status.textContent = words;
  status.dataset.state = state;
}

let current = false; // whether all that the server knows has come
let outdated = false; // whether the server is of another version, which these scripts cannot read

// Waits for the page of the server's version. Where several servers are being upgraded it may come from an earlier one.
function becomeOutdated() {
  outdated = true;
  by("page").hidden = true;
  say("waiting: the server has another version of this page", "broken");
  window.loadAgain();
}

function take(kind, data) {
  if (outdated) return;
  if (kind === "viewer" && data.version !== VERSION) {
    becomeOutdated();
  } else if (kind === "viewer") {
    viewer = data;
    by("sign-out").hidden = !data.signedIn;
  } else if (kind === "fleet") {
    fleet.replace(data);
    by("page").hidden = false;
    drawSoon();
  } else if (kind === "change") {
    drawSoon(fleet.apply(data));
  } else if (kind === "broken") {
    say(data ? `waiting: ${data}` : "no connection to the server", "broken");
  }
  current = ["fleet", "change", "current"].includes(kind);
  if (!current) return;
  requestAnimationFrame(() => {
    // After what has come is drawn.
    if (current) say(viewer.name ? `live · ${viewer.name}` : "live", "live");
  });
}

async function start() {
  following?.abort();
  following = new AbortController();
  by("sign-in").hidden = true;
  try {
    await follow(sessionStorage.getItem(TOKEN) ?? "", take, following.signal);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    by("page").hidden = true;
    by("sign-out").hidden = true;
    say("", "");
    by("sign-in").hidden = false;
    by("refusal").textContent = sessionStorage.getItem(TOKEN) || error.status !== 401 ? error.message : "";
    sessionStorage.removeItem(TOKEN);
    by("token").focus();
  }
}

by("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, by("token").value.trim());
  by("token").value = "";
  start();
});
by("sign-out").addEventListener("click", () => {
  following?.abort();
  sessionStorage.removeItem(TOKEN);
  location.reload();
});
by("filters").addEventListener("submit", (event) => event.preventDefault());
by("filters").addEventListener("input", (event) => {
  filters[event.target.name] = event.target.value;
  writeAddress();
  drawSoon();
});
by("filters").addEventListener("reset", () => {
  for (const name of FILTERS) filters[name] = "";
  writeAddress();
  drawSoon();
});
document.addEventListener("click", (event) => {
  const followed = event.target.closest('a[href^="?"]');
  if (!followed || event.button || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(new URLSearchParams(followed.getAttribute("href")), { ofAll: by("totals").contains(followed) });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && selected) choose("");
});
addEventListener("popstate", () => {
  readAddress();
  drawSoon();
});
readAddress();
start();
