"use strict";
// What a round of the document holds, and which of its candidates another beta would keep. Nothing here draws.

const Rounds = (() => {
  // The classifier's inputs (c2t/kernels/features.py).
  const FEATURES = {
    joint_prob: (round, i) => Math.exp(round.logJoint[i]),
    entropy: (round, i) => round.entropy[i],
    depth: (round, i) => round.depth[i],
    log_joint: (round, i) => round.logJoint[i],
    log_prob: (round, i) => round.logProb[i],
    log_max_prob: (round, i) => round.maxLogProb[i],
    rank: (round, i) => round.rank[i],
    max_prob_logit: (round, i) => {
      const p = Math.min(Math.max(Math.exp(round.maxLogProb[i]), 1e-6), 1 - 1e-6);
      return Math.log(p / (1 - p));
    },
  };

  function column(text, Kind) {
    return new Kind(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
  }

  // A round of the document as columns over all nodes: the root is 0, candidates follow in the order of drafting.
  function read(raw, policy) {
    const parents = column(raw.parents, Int32Array), sizes = column(raw.sizes, Int32Array);
    const entropies = column(raw.entropies, Float32Array);
    const token = column(raw.token, Int32Array), logProb = column(raw.log_prob, Float32Array);
    const target = column(raw.target, Float32Array), size = token.length + 1;
    const round = { size, passes: raw.passes, position: raw.position, children: Array.from({ length: size }, () => []) };
    round.token = new Int32Array(size);
    for (const name of ["parent", "depth", "rank"]) round[name] = new Int32Array(size).fill(-1);
    for (const name of ["logProb", "logJoint", "entropy", "maxLogProb", "target"]) round[name] = new Float32Array(size);
    round.expanded = new Uint8Array(size);
    let node = 1;
    parents.forEach((parent, family) => {
      round.expanded[parent] = 1;
      const first = node;
      for (let rank = 0; rank < sizes[family]; rank++, node++) {
        round.token[node] = token[node - 1];
        round.parent[node] = parent;
        round.depth[node] = round.depth[parent] + 1;
        round.rank[node] = rank;
        round.logProb[node] = logProb[node - 1];
        round.logJoint[node] = round.logJoint[parent] + logProb[node - 1]; // rounded to float32, as in Python
        round.entropy[node] = entropies[family];
        round.target[node] = target[node - 1];
        round.children[parent].push(node);
      }
      round.maxLogProb.fill(logProb.subarray(first - 1, node - 1).reduce((a, b) => Math.max(a, b), -Infinity), first, node);
    });
    round.kept = marks(size, [0, ...raw.kept]);
    round.accepted = marks(size, [0, ...raw.accepted]);
    round.confidence = confidences(round, policy.classifier);
    return round;
  }

  function marks(size, nodes) {
    const marked = new Uint8Array(size);
    for (const node of nodes) marked[node] = 1;
    return marked;
  }

  // Each node's confidence: the classifier's, or without one the joint probability.
  function confidences(round, classifier) {
    const found = new Float64Array(round.size).fill(1);
    for (let node = 1; node < round.size; node++) {
      if (!classifier) {
        found[node] = Math.exp(round.logJoint[node]);
        continue;
      }
      const inputs = classifier.features.map((name) => FEATURES[name](round, node));
      found[node] = 1 / (1 + Math.exp(-network(classifier.layers, inputs)));
      if (classifier.conditional) found[node] *= found[round.parent[node]];
    }
    return found;
  }

  function network(layers, inputs) {
    layers.forEach(([weight, bias], number) => {
      const sums = weight.map((row, unit) => row.reduce((sum, w, i) => sum + w * inputs[i], bias[unit]));
      inputs = number < layers.length - 1 ? sums.map((sum) => Math.max(sum, 0)) : sums;
    });
    return inputs[0];
  }

  // Grow the tree again among the drafted candidates, with another threshold (c2t/policies/growth.py).
  // unseen: kept nodes whose own candidates were never drafted, so that the tree could be larger.
  function prune(round, threshold, limits) {
    const kept = marks(round.size, [0]);
    let frontier = [0], verified = 1, unseen = 0;
    for (let level = 0; level < limits.levels && frontier.length; level++) {
      unseen += frontier.filter((node) => !round.expanded[node]).length;
      const alive = frontier.flatMap((node) => round.children[node])
        .filter((node) => round.confidence[node] >= threshold && round.logJoint[node] > -Infinity);
      alive.sort((a, b) => round.confidence[b] - round.confidence[a] || round.logJoint[b] - round.logJoint[a] || a - b);
      const wanted = Math.min(alive.length, limits.width), count = Math.min(wanted, limits.nodes - verified);
      const joining = alive.slice(0, count);
      verified += count;
      for (const node of joining) kept[node] = 1;
      frontier = verified < limits.nodes ? joining : [];
    }
    return { kept, verified, unseen };
  }

  // The drafted tokens that would be accepted: the target's text goes on as it does, whatever the tree.
  function walk(round, kept, text) {
    const path = [];
    for (let node = 0; path.length < text.length; path.push(node)) {
      node = round.children[node].find((child) => kept[child] && round.token[child] === text[path.length]);
      if (node === undefined) break;
    }
    return path;
  }

  return { read, prune, walk };
})();
