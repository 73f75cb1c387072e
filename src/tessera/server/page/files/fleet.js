// The fleet as the server sent it, kept up to date by its changes. Nothing here touches the document.

const NOTHING = {
  pending: [], modelServers: [], recommendations: [], namespaces: [], notes: [], pendingElsewhere: 0, partial: false,
};

export class Fleet {
  nodes = new Map();
  rest = NOTHING;
  activity = new Map(); // percent of its GPU or MIG instance that a pod uses, by namespace/pod
  memoryMib = new Map(); // memory of a GPU that pods use, by its UUID and namespace/pod

  // Takes all of a fleet.
  replace(fleet) {
    this.nodes = new Map(fleet.nodes.map((node) => [node.name, complete(node)]));
    this.activity = merged(new Map(), fleet.activity);
    this.memoryMib = merged(new Map(), fleet.memoryMib);
    this.#take(fleet);
  }

  // Takes a change; returns the names of the nodes that it concerns.
  apply(change) {
    const changed = [];
    for (const node of change.nodes ?? []) {
      this.nodes.set(node.name, complete(node));
      changed.push(node.name);
    }
    for (const name of change.gone ?? []) {
      this.nodes.delete(name);
      changed.push(name);
    }
    merged(this.activity, change.activity);
    merged(this.memoryMib, change.memoryMib);
    if (change.rest) this.#take(change.rest);
    return changed;
  }

  #take(fleet) {
    const { nodes, activity, memoryMib, ...rest } = fleet;
    this.rest = { ...NOTHING, ...rest };
  }
}

// Takes a merge patch (RFC 7386) into a map of numbers, or of such maps.
function merged(known, patch) {
  for (const name in patch) {
    const value = patch[name];
    if (value === null) known.delete(name);
    else if (typeof value === "number") known.set(name, value);
    else known.set(name, merged(known.get(name) ?? new Map(), value));
  }
  return known;
}

// Fields that are empty are left out of the answer.
function complete(node) {
  const gpus = (node.gpus ?? []).map((gpu) => ({
    allocatedMib: 0,
    problems: [],
    contention: [],
    throttled: [],
    ...gpu,
    parts: gpu.parts.map((part) => ({ label: "", exists: true, idle: false, pods: [], ...part })),
  }));
  return { ready: true, driver: "", policy: "", problem: "", unplaced: [], images: [], models: [], ...node, gpus };
}

// What a pod is called together with others of its workload.
export function workload(pod) {
  return pod.workload || pod.pod;
}

export function owner(pod, by) {
  if (!pod.pod) return "";
  return by === "workload" ? `${pod.namespace}/${workload(pod)}` : pod.namespace;
}

const GROUPED = new Intl.NumberFormat("en-US"); // toLocaleString makes one at each call

// Memory by the rule of `gib` in core/workload/units.py.
export function gib(mib) {
  const value = mib / 1024;
  if (mib > 0 && value < 1) return `${Math.floor(mib)} MiB`;
  const parts = value >= 1000 ? 1 : 10;
  return `${GROUPED.format(Math.floor(value * parts) / parts)} GiB`;
}

// Why a GPU is slow.
export function slowness(contention) {
  return contention.cause === "saturated" ? "saturated" : `throttled: ${contention.cause.replaceAll("-", " ")}`;
}

const STATES = {
  allocated: (gpu) => gpu.parts.some((part) => part.state === "allocated"),
  idle: (gpu) => gpu.parts.some((part) => part.idle),
  free: (gpu) => gpu.parts.some((part) => part.state === "free" || part.state === "unused"),
  planned: (gpu) => gpu.parts.some((part) => !part.exists),
  slow: (gpu) => gpu.contention.length > 0,
  problem: (gpu) => gpu.problems.length > 0,
};

export function isState(name) {
  return Object.hasOwn(STATES, name);
}

// Whether only some GPUs are shown, whatever the namespace.
export function chooses({ node, model, state }) {
  return Boolean(node || model || state);
}

// Returns the function that tells whether a GPU of a node is shown.
export function matcher(filters) {
  const { namespace, model, state, node: name } = filters;
  return (node, gpu) =>
    (!name || node.name.includes(name)) &&
    (!model || gpu.model === model) &&
    (!state || (state === "problem" && (!node.ready || node.problem)) || (isState(state) && STATES[state](gpu))) &&
    (!namespace || gpu.parts.some((part) => part.pods.some((pod) => pod.namespace === namespace)));
}

export function totals(fleet) {
  const sum = { gpus: 0, used: 0, allocated: 0, memory: 0, idle: 0, slow: 0, problems: 0 };
  for (const node of fleet.nodes.values()) {
    if (!node.ready || node.problem) sum.problems += 1;
    for (const gpu of node.gpus) {
      sum.gpus += 1;
      sum.memory += gpu.memoryMib;
      sum.allocated += gpu.allocatedMib;
      if (gpu.allocatedMib > 0) sum.used += 1;
      if (gpu.contention.length) sum.slow += 1;
      if (gpu.problems.length) sum.problems += 1;
      for (const part of gpu.parts) {
        if (part.idle) sum.idle += part.pods.reduce((mib, pod) => mib + (pod.memoryMib ?? 0), 0);
      }
    }
  }
  return sum;
}
