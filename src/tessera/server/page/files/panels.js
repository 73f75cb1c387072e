// The side panels: one GPU, pending pods, slow GPUs, model servers over time, right-sizing, notes. Empty ones are not shown.

import { chooses, gib, matcher, owner, slowness, workload } from "./fleet.js";
import { element, link, renew } from "./mosaic.js";

const SVG = "http://www.w3.org/2000/svg";
const MOST = 50;
const SPELLED_OUT = 5; // pods of a workload in the details of a GPU
const FIRST = 4;
const MODES = {
  whole: "whole GPU",
  mig: "MIG",
  "mig-time-slicing": "MIG, time-slicing",
  "mig-mps": "MIG, MPS",
  mps: "MPS",
  "time-slicing": "time-slicing",
  "memory-share": "memory share",
};
const ISOLATION = {
  hardware: "hardware isolation",
  "driver-mps": "isolation by MPS",
  "driver-dmem": "memory limited by the driver",
  none: "no isolation",
};
const opened = new Set(); // of which lists all is shown
const lists = new Map(); // the items of each list

function fill(section, title, ...content) {
  section.hidden = content.length === 0;
  if (section.hidden) return renew(section);
  const heading = element("h2", "", title);
  heading.id = `${section.id}-title`;
  renew(section, heading, ...content);
}

// The first of a list, and a button that shows the others.
function list(section, items) {
  lists.set(section.id, items);
  const made = element("ul", "cards");
  made.append(...(opened.has(section.id) ? items : items.slice(0, FIRST)));
  if (items.length <= FIRST) return [made];
  const button = element("button", "all", opened.has(section.id) ? "Show fewer" : `Show all ${items.length}`);
  button.type = "button";
  button.addEventListener("click", () => {
    if (!opened.delete(section.id)) opened.add(section.id);
    const drawn = list(section, lists.get(section.id));
    made.replaceWith(drawn[0]);
    button.replaceWith(drawn[1]);
    drawn[1].focus();
  });
  return [made, button];
}

// A pending pod is on no GPU: filters of GPUs leave those whose MIG instances are being created on one that is shown.
export function drawPending(section, { rest, nodes }, filters) {
  const pending = rest.pending.filter((pod) => !filters.namespace || pod.namespace === filters.namespace);
  const shows = matcher({ ...filters, namespace: "" });
  const isShown = (name) => nodes.get(name)?.gpus.some((gpu) => shows(nodes.get(name), gpu));
  const shown = chooses(filters) ? pending.filter((pod) => pod.createdOn?.some(isShown)) : pending;
  const elsewhere = filters.namespace || chooses(filters) ? 0 : rest.pendingElsewhere;
  const groups = new Map(); // pods of one workload pending for one reason are one entry
  for (const pod of shown) {
    const key = [pod.namespace, workload(pod), pod.need, pod.reason, pod.createdOn].join("\n");
    groups.set(key, [...(groups.get(key) ?? []), pod]);
  }
  const items = [...groups.values()].slice(0, MOST).map(([first, ...others]) => {
    const item = element("li");
    const name = others.length ? `${workload(first)} × ${others.length + 1}` : first.pod;
    const title = entry(`${first.namespace}/${name}`, { namespace: first.namespace });
    title.firstChild.title = `Show GPUs and pods of ${first.namespace}`;
    item.append(title, element("span", "need", first.need));
    const planned = first.createdOn?.length ? `MIG instances are being created on ${first.createdOn.join(", ")}.` : "";
    if (planned) item.append(element("p", "", planned));
    if (first.reason && !planned) item.append(element("p", "", first.reason));
    if (first.reason) item.lastChild.title = first.reason;
    return item;
  });
  const content = shown.length ? list(section, items) : [];
  if (groups.size > MOST) content.push(element("p", "more", `and ${groups.size - MOST} more workloads`));
  if (elsewhere) content.push(element("p", "more", `${elsewhere} pending in other namespaces`));
  const others = pending.length - shown.length;
  if (others) content.push(element("p", "more", `${others} more, on no GPU that is shown`));
  fill(section, `Pending pods · ${shown.length + elsewhere}`, ...content);
}

// GPUs that slow their pods, and the pods that cause it.
export function drawSlow(section, nodes, filters) {
  const shows = matcher(filters);
  const items = [];
  for (const node of nodes) {
    for (const gpu of node.gpus) {
      if (!gpu.contention.length || !shows(node, gpu)) continue;
      const item = element("li");
      item.append(entry(`${node.name}, GPU ${gpu.index}`, { gpu: `${node.name}/${gpu.index}` }));
      const causes = new Map(); // causes with the same culprits are one entry
      for (const contention of gpu.contention) {
        const names = causedBy(contention, Infinity);
        causes.set(names, [...(causes.get(names) ?? []), contention]);
      }
      for (const [names, alike] of causes) {
        const cause = element("p", "", causedBy(alike[0], 1));
        cause.title = names;
        item.append(element("span", "need", alike.map(slowness).join(", ")), cause);
      }
      items.push(item);
    }
  }
  fill(section, `Slow GPUs · ${items.length}`, ...(items.length ? list(section, items) : []));
}

function entry(text, query) {
  const title = element("b");
  title.append(link(text, query));
  return title;
}

// What is known of the cause. Of a workload at most so many pods are named one by one.
function causedBy(contention, most) {
  const sharers = named(contention.evenly ?? [], most);
  const ended = contention.ended ? " Part of the load came from processes that exited and cannot be attributed to a pod." : "";
  if (sharers.length > 1) return `${sharers.slice(0, -1).join(", ")} and ${sharers.at(-1)} use it about equally.${ended}`;
  if (sharers.length) return `${sharers[0]} use it about equally.${ended}`;
  const names = named(contention.causedBy ?? [], most);
  const where = contention.scope === "node" ? "on this node" : "on this GPU";
  if (names.length) return `Caused by ${names.join(", ")}${contention.scope === "node" ? ` ${where}` : ""}.${ended}`;
  if (contention.nobody) return `No busy pod ${where}: check cooling and power supply.${ended}`;
  return `Cause unknown: not all load can be attributed to pods.${ended}`;
}

function named(pods, most) {
  const groups = new Map(); // more pods of one workload are one entry
  for (const each of pods) {
    const name = each.pod ? `${each.namespace}/${workload(each)}` : "";
    groups.set(name, [...(groups.get(name) ?? []), each]);
  }
  return [...groups].flatMap(([name, group]) => {
    if (!name) return group.length > 1 ? `${group.length} pods of other namespaces` : "a pod of another namespace";
    return group.length > most ? `${name} × ${group.length}` : group.map((each) => `${each.namespace}/${each.pod}`);
  });
}

export function drawNotes(section, rest) {
  const notes = rest.notes.slice(0, MOST).map((note) => element("li", "", note));
  fill(section, "Notes", ...(notes.length ? list(section, notes) : []));
}

// Who was allocated too much GPU memory, or too little; containers of one workload with the same advice are one entry.
export function drawSizes(section, { rest, nodes }, filters) {
  const shows = matcher(filters);
  const isShown = ({ node: name, gpu: index }) => {
    const node = nodes.get(name);
    return node?.gpus.some((gpu) => gpu.index === index && shows(node, gpu)) || !chooses(filters);
  };
  const shown = rest.recommendations.filter(
    (each) => (!filters.namespace || each.namespace === filters.namespace) && isShown(each),
  );
  const groups = new Map();
  for (const each of shown) {
    const key = [each.namespace, workload(each), each.container, each.device, each.allocatedMib, each.verdict, each.fits, each.loadUnknown];
    groups.set(key.join("\n"), [...(groups.get(key.join("\n")) ?? []), each]);
  }
  const items = [...groups.values()].slice(0, MOST).map((group) => {
    const [first] = group;
    const name = group.length > 1 ? `${workload(first)} × ${group.length}` : first.pod;
    const peak = Math.max(...group.map((each) => each.peakMib ?? 0));
    const device = first.device === "whole" ? "" : ` (${first.device})`;
    const observed = Math.min(...group.map((each) => each.observedS ?? 0));
    const item = element("li");
    item.append(entry(`${first.namespace}/${name}`, { gpu: `${first.node}/${first.gpu}` }));
    const used = peak && first.verdict !== "unused" ? `at most ${gib(peak)} used` : "nothing used";
    item.append(element("span", "need", `${gib(first.allocatedMib ?? 0)}${device} allocated, ${used} in ${duration(observed)}`));
    item.append(element("p", "", advice(first, total(group), group.length)));
    return item;
  });
  const saved = total(shown);
  const content = items.length ? list(section, items) : [];
  if (groups.size > MOST) content.push(element("p", "more", `and ${groups.size - MOST} more workloads`));
  fill(section, `Right-sizing${saved ? ` · frees ${gib(saved)}` : ""}`, ...content);
}

function total(group) {
  return group.reduce((sum, each) => sum + (each.savedMib ?? 0), 0);
}

function advice(first, saved, count) {
  const load = first.loadUnknown ? " Its load is unknown." : "";
  if (first.verdict === "too-little") {
    return first.fits ? `Allocated too little: ${first.fits} fits.${load}` : "Uses over 95 % of its memory; no larger profile of this GPU is known.";
  }
  if (first.verdict === "unused") {
    const [pods, replicas] = count > 1 ? ["pods", `${count} replicas`] : ["pod", "a replica"];
    return `Unused. Deleting the ${pods} frees ${saved ? gib(saved) : replicas}.`;
  }
  if (first.verdict === "idle") return "Idle: less than 5 % of its compute used.";
  return `${first.fits} is enough; frees ${gib(saved)}.${load}`;
}

function duration(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600), Math.max(1, Math.round(seconds / 60))];
  if (days > 1) return `${days} days`;
  return hours > 1 ? `${hours} hours` : `${minutes} min`;
}

export function drawModelServers(section, rest, filters) {
  const shown = rest.modelServers.filter((each) => !filters.namespace || each.namespace === filters.namespace);
  const content = shown.filter((each) => each.points.length > 1).map(timeline);
  fill(section, "Autoscaling", ...content);
}

// Replicas desired and ready over time, requests in flight behind them.
function timeline(server) {
  const points = server.points;
  const [width, height] = [320, 72];
  const [from, to] = [points[0][0], points[points.length - 1][0]];
  const last = points[points.length - 1];
  const x = (time) => ((time - from) / Math.max(to - from, 1)) * width;
  const most = Math.max(1, ...points.map((point) => Math.max(point[1], point[2])));
  const load = Math.max(1, ...points.map((point) => point[3]));
  const y = (value, top) => height - 2 - (value / top) * (height - 8);
  const steps = (place) => points.map((point, i) =>
    i ? `H${x(point[0]).toFixed(1)}V${y(point[place], most).toFixed(1)}` : `M0 ${y(point[place], most).toFixed(1)}`).join("");
  const area = points.map((point) => `L${x(point[0]).toFixed(1)} ${y(point[3], load).toFixed(1)}`).join("");
  const figure = element("figure");
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  const words = `${counted(last[1], "replica")} desired, ${last[2]} ready, ${counted(Math.round(last[3]), "request")} in flight`;
  drawing.setAttribute("aria-label", `${server.namespace}/${server.name}: ${words}`);
  for (const [kind, data] of [["load", `M0 ${height}${area}L${width} ${height}Z`], ["desired", steps(1)], ["ready", steps(2)]]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", kind);
    path.setAttribute("d", data);
    drawing.append(path);
  }
  const caption = element("figcaption");
  caption.append(element("b", "", `${server.namespace}/${server.name}`), element("span", "", words));
  const axis = element("p", "axis");
  axis.append(element("span", "", `${duration(to - from)} ago`), element("span", "", "now"));
  figure.append(caption, drawing, axis);
  const keys = element("p", "keys");
  for (const [kind, name] of [["load", `in flight (max ${Math.round(load)})`], ["ready", `ready (max ${most})`], ["desired", "desired"]]) {
    keys.append(element("span", `key ${kind}`, name));
  }
  figure.append(keys);
  return figure;
}

export function drawDetails(section, { node, gpu, activity, memoryMib }, palette, filters, close) {
  if (!gpu) return fill(section, "");
  const button = element("button", "close", "Close");
  button.type = "button";
  button.addEventListener("click", close);
  const content = [button];
  const facts = element("dl");
  const used = gpu.usedMib === undefined ? "" : `, ${gib(gpu.usedMib)} in use`;
  for (const [name, value] of [
    ["Model", gpu.model],
    ["Memory", `${gib(gpu.allocatedMib)} of ${gib(gpu.memoryMib)} allocated${used}`],
    ["Sharing", gpu.mode.split(", ").map((mode) => MODES[mode] ?? mode).join(", ")],
    ["Health", gpu.problems.length ? gpu.problems.join("; ") : gpu.health],
    ["Clocks", gpu.throttled.length ? `lowered: ${gpu.throttled.join(", ").replaceAll("-", " ")}` : ""],
    ["Contention", gpu.contention.map((each) => `${slowness(each)}. ${causedBy(each, SPELLED_OUT)}`).join(" ")],
    ["Driver", node.driver],
    ["Policy", node.policy],
    ["UUID", gpu.uuid ?? ""],
  ]) {
    if (value) facts.append(element("dt", "", name), element("dd", "", value));
  }
  content.push(facts);
  const present = layout(gpu.parts.filter((part) => part.exists && part.state !== "free"));
  const planned = layout(gpu.parts.filter((part) => part.state !== "free"));
  if (gpu.parts.some((part) => !part.exists)) {
    const layouts = element("dl", "layouts");
    layouts.append(element("dt", "", "Present layout"), element("dd", "", present || "no instance"));
    layouts.append(element("dt", "", "Planned layout"), element("dd", "", planned));
    content.push(layouts);
  }
  content.push(table(gpu, activity, memoryMib, palette, filters));
  if (node.images.length) {
    content.push(element("h3", "", `Images on ${node.name}`));
    const images = element("ul", "images");
    for (const image of node.images) {
      const item = element("li");
      item.append(element("bdi", "", image.image), ` · ${image.state}`);
      images.append(item);
    }
    content.push(images);
  }
  if (node.models.length) {
    content.push(element("h3", "", `Models on ${node.name}`));
    const models = element("ul", "images");
    for (const model of node.models) models.append(element("li", "", aboutModel(model)));
    content.push(models);
  }
  if (node.unplaced.length) {
    const names = node.unplaced.map((each) => (each.pod ? `${each.namespace}/${each.pod}` : "a pod of another namespace"));
    content.push(element("p", "problem", `On this node, GPU unknown: ${names.join(", ")}`));
  }
  fill(section, `${node.name}, GPU ${gpu.index}`, ...content);
}

function aboutModel(model) {
  const containers = model.containers && counted(model.containers, "container");
  const fetched = model.fetchedPercent !== undefined && `${model.fetchedPercent} % fetched`;
  return [model.model, model.state, model.bytes && gib(model.bytes / 2 ** 20), containers, fetched].filter(Boolean).join(" · ");
}

function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function layout(parts) {
  return parts.map((part) => (part.label && Number.isInteger(part.start) ? `${part.label} at ${part.start}` : part.label)).join(", ");
}

// Who uses what: memory by pod, of all its parts of the GPU, and activity, of its busiest one.
function table(gpu, activity, memoryMib, palette, filters) {
  const inAll = new Set(); // pods of which the memory is shown
  const made = element("table");
  const head = element("tr");
  for (const name of ["Part", "Pod", "Memory", "Activity"]) {
    const cell = element("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  made.append(element("thead"), element("tbody"));
  made.tHead.append(head);
  for (const part of gpu.parts) {
    const label = part.label || gib(part.size > 64 ? part.size : (part.size * gpu.memoryMib) / gpu.width);
    const state = part.exists ? part.state : "to be created";
    for (const pod of part.pods.length ? part.pods : [null]) {
      const row = element("tr");
      row.append(element("td", "", label));
      const cell = element("td");
      if (pod) {
        cell.append(element("i", `swatch c-${palette.number(owner(pod, filters.color))}`));
        cell.append(pod.pod ? `${pod.namespace}/${pod.pod}` : "other namespaces");
        const more = [ISOLATION[pod.isolation] ?? pod.isolation, pod.phase !== "running" && pod.phase, !part.exists && state];
        cell.append(element("small", "", more.filter(Boolean).join(", ")));
      } else {
        cell.append(state);
      }
      const name = pod?.pod ? `${pod.namespace}/${pod.pod}` : "";
      const active = activity.get(name);
      const used = inAll.has(name) ? undefined : memoryMib?.get(name);
      inAll.add(name);
      row.append(cell, element("td", "", used === undefined ? "" : gib(used)));
      row.append(element("td", "", active === undefined ? (part.idle ? "idle" : "") : `${active} %`));
      made.tBodies[0].append(row);
    }
  }
  return made;
}
