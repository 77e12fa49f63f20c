/* The fused draft phase of a round: a layered policy, which ranks by a classifier or by joint probability, on an
   EAGLE head; see draft_phase.py. */

#include "c2t.h"
#include "masks.h"

#include <math.h>
#include <string.h>

enum { LOG_JOINT, ENTROPY, DEPTH, LOG_PROB, MAX_LOG_PROB, RANK, COLUMNS }; /* as network.py has them */

/* The residual's input: token and state as fc joined them (EAGLE-1/2), or, with queries, keys and values read from
   both, the state (EAGLE-3), or the normalised state. */
enum { JOINED, STATE, NORMED };

#define MOST_EXCLUDED 1 /* probability of forbidden candidates, over that of the others, up to which they are excluded */
#define TRIES 2 /* rankings of a node's candidates before a mask */

/* Columns (rows, slots) of the trees; count: nodes of each. column: of the cache, counted from the end of the text, for
   a node that was expanded. */
typedef struct {
    int64_t *token, *parent, *depth, *rank, *column, *count;
    float *log_prob, *log_joint, *entropy, *most, *score;
    long slots;
} trees;

/* Nodes that are expanded together, row after row: of row r those from begin[r] to begin[r + 1]. */
typedef struct {
    int64_t *row, *slot, *begin;
} frontier;

/* Everything that a phase needs room for. states: (rows, entries, hidden), the root's first. joint, score, usable,
   chosen, and the columns that a classifier reads: of a row's candidates. stays: which nodes of all rows are left;
   asked, expands, left, order: for a budget's decisions. */
typedef struct {
    trees tree;
    frontier now, next;
    float *states, *features, *x, *read, *inner, *logits, *log_prob, *entropy, *log_norm;
    float *joint, *score, *entropies, *mosts;
    int64_t *depths, *ranks;
    int64_t *token, *position, *cache_slot, *first, *prefix, *top, *chosen, *retained, *put, *asked, *order;
    uint8_t *mask, *windowed, *usable, *stays, *left, *expands;
    long entries, candidates;
} rooms;

static void *reserve(char **room, long size) {
    char *taken = *room;
    *room = taken + (size + 63) / 64 * 64;
    return taken;
}

static long most_of(long a, long b) { return a > b ? a : b; }

/* The window of the layers that have one, else 0. */
static long window_of(const head *h) {
    long window = 0;
    for (long l = 0; l < h->count; l++) window = most_of(window, h->layers[l].window);
    return window;
}

/* Lay out the rooms from `room` on; return the byte after them. */
static char *lay_out_rooms(const plan *p, const head *h, const text *t, int threads, char *room, rooms *m) {
    long width = most_of(p->width, 1), rows = t->rows, wide = rows * width;
    m->candidates = width * p->K, m->entries = 1 + width * (p->levels - 1);
    m->tree.slots = 1 + p->levels * (p->reranked ? m->candidates : width);
    long cells = rows * m->tree.slots, key_count = t->text_slots + m->entries;
    long whole = sizeof(int64_t), real = sizeof(float);
    int64_t **columns[] = {&m->tree.token, &m->tree.parent, &m->tree.depth, &m->tree.rank, &m->tree.column};
    for (int c = 0; c < 5; c++) *columns[c] = reserve(&room, cells * whole);
    float **numbers[] = {&m->tree.log_prob, &m->tree.log_joint, &m->tree.entropy, &m->tree.most, &m->tree.score};
    for (int c = 0; c < 5; c++) *numbers[c] = reserve(&room, cells * real);
    m->tree.count = reserve(&room, rows * whole);
    frontier *both[] = {&m->now, &m->next};
    for (int f = 0; f < 2; f++) {
        both[f]->row = reserve(&room, wide * whole), both[f]->slot = reserve(&room, wide * whole);
        both[f]->begin = reserve(&room, (rows + 1) * whole);
    }
    int64_t **of_each[] = {&m->token, &m->position, &m->cache_slot, &m->first, &m->prefix};
    for (int c = 0; c < 5; c++) *of_each[c] = reserve(&room, wide * whole);
    m->states = reserve(&room, rows * m->entries * h->hidden * real);
    m->features = reserve(&room, wide * h->hidden * real), m->x = reserve(&room, wide * h->hidden * real);
    m->read = reserve(&room, h->base == JOINED ? 0 : wide * h->read.into.outputs * real);
    long inner = most_of(wide * most_of(h->room, 2 * h->hidden) + threads * h->lanes * (key_count + h->lanes), 1);
    m->inner = reserve(&room, inner * real);
    m->logits = reserve(&room, wide * (h->vocabulary + t->oov_count) * real);
    m->top = reserve(&room, wide * p->K * whole), m->log_prob = reserve(&room, wide * p->K * real);
    m->entropy = reserve(&room, wide * real), m->log_norm = reserve(&room, wide * real);
    float **of_candidates[] = {&m->joint, &m->score, &m->entropies, &m->mosts};
    for (int c = 0; c < 4; c++) *of_candidates[c] = reserve(&room, m->candidates * real);
    m->depths = reserve(&room, m->candidates * whole), m->ranks = reserve(&room, m->candidates * whole);
    m->usable = reserve(&room, m->candidates);
    m->chosen = reserve(&room, m->candidates * whole);
    m->retained = reserve(&room, m->tree.slots * whole), m->put = reserve(&room, m->tree.slots * whole);
    m->stays = reserve(&room, cells), m->left = reserve(&room, cells), m->order = reserve(&room, cells * whole);
    m->asked = reserve(&room, wide * whole), m->expands = reserve(&room, wide);
    m->mask = reserve(&room, wide * key_count);
    m->windowed = window_of(h) ? reserve(&room, wide * key_count) : m->mask;
    return room;
}

/* Bytes of room that a phase needs. */
long room_of(const plan *p, const head *h, const text *t, int threads) {
    rooms m;
    return lay_out_rooms(p, h, t, threads, (char *)0, &m) - (char *)0;
}

/* The token of one of row r's logits. */
static int64_t token_of(const head *h, const text *t, long r, int64_t index) {
    int64_t beyond = index - h->vocabulary;
    return beyond >= 0 ? t->oov_ids[r * t->oov_count + beyond] : h->ids ? h->ids[index] : index;
}

/* Append candidate `which` of those below the frontier's nodes of row r. */
static void append(const plan *p, const head *h, const text *of, const rooms *m, long r, long which) {
    const trees *t = &m->tree;
    long from = m->now.begin[r] + which / p->K, rank = which % p->K, above = r * t->slots + m->now.slot[from];
    long at = r * t->slots + t->count[r]++;
    t->token[at] = token_of(h, of, r, m->top[from * p->K + rank]);
    t->parent[at] = m->now.slot[from], t->depth[at] = t->depth[above] + 1, t->rank[at] = rank;
    t->log_prob[at] = m->log_prob[from * p->K + rank], t->log_joint[at] = m->joint[which];
    t->entropy[at] = m->entropy[from], t->most[at] = m->log_prob[from * p->K], t->score[at] = m->score[which];
}

/* Score row r's n candidates: the classifier's confidence, else the log of the joint probability. */
static void score_row(const plan *p, const rooms *m, long r, long n) {
    long begin = m->now.begin[r];
    const int64_t *above = m->now.slot + begin;
    const trees *t = &m->tree;
    for (long i = 0; i < n; i++)
        m->joint[i] = t->log_joint[r * t->slots + above[i / p->K]] + m->log_prob[begin * p->K + i];
    if (!p->network) {
        memcpy(m->score, m->joint, n * sizeof *m->score);
        return;
    }
    for (long i = 0; i < n; i++) {
        long from = i / p->K;
        m->entropies[i] = m->entropy[begin + from], m->mosts[i] = m->log_prob[(begin + from) * p->K];
        m->depths[i] = t->depth[r * t->slots + above[from]] + 1, m->ranks[i] = i % p->K;
    }
    const void *columns[COLUMNS], *inputs[p->network->inputs];
    columns[LOG_JOINT] = m->joint, columns[ENTROPY] = m->entropies, columns[LOG_PROB] = m->log_prob + begin * p->K;
    columns[MAX_LOG_PROB] = m->mosts, columns[DEPTH] = m->depths, columns[RANK] = m->ranks;
    for (long i = 0; i < p->network->inputs; i++) inputs[i] = columns[p->inputs[i]];
    confidences(p->network, inputs, n, m->score);
    for (long i = 0; i < n && p->network->conditional; i++) m->score[i] *= t->score[r * t->slots + above[i / p->K]];
}

/* Let row r's candidates join, and its next frontier begin at number `from`; return where that ends. capped: what only
   limits keep out. */
static long join_row(const plan *p, const head *h, const text *t, const rooms *m, long r, long from, int64_t *capped) {
    long n = (m->now.begin[r + 1] - m->now.begin[r]) * p->K, grown = m->tree.count[r], survivors = 0;
    score_row(p, m, r, n);
    for (long i = 0; i < n; i++) {
        float confidence = p->network ? m->score[i] : expf(m->joint[i]);
        m->usable[i] = m->joint[i] > -INFINITY && (p->reranked || confidence >= p->threshold);
        survivors += m->usable[i];
    }
    long wanted = survivors < p->width ? survivors : p->width;
    long space = p->reranked ? wanted + 1 : p->most - grown, count = wanted < space ? wanted : space;
    *capped += p->reranked ? 0 : (p->strict ? survivors : wanted) - count;
    best(m->score, p->network ? m->joint : 0, m->usable, 1, n, count, m->chosen);
    for (long i = 0; i < (p->reranked ? n : count); i++) append(p, h, t, m, r, p->reranked ? i : m->chosen[i]);
    for (long i = 0; i < count && count < space; i++, from++)
        m->next.row[from] = r, m->next.slot[from] = grown + (p->reranked ? m->chosen[i] : i);
    return from;
}

/* Logits after states of the frontier: of the vocabulary, then of out-of-vocabulary tokens. */
static void read_logits(const head *h, const text *t, const rooms *m, const float *states, int threads) {
    long many = m->now.begin[t->rows];
    if (h->norm && !h->normed) {
        rms_norm(states, h->norm, h->read.epsilon, many, h->hidden, m->features, threads);
        states = m->features;
    }
    linear(&h->lm_head, states, many, m->inner, m->logits, h->vocabulary + t->oov_count, threads);
    if (t->oov_count)
        add_oov_tokens(states, m->now.row, many, h->hidden, h->all, h->all_is_bf16, t->oov_ids, t->oov_count, m->logits,
                       h->vocabulary, threads);
}

/* Add the noise of the target's samples after the frontier's nodes. */
static void make_noisy(const head *h, const text *t, const rooms *m, const noise *n, int threads) {
    long many = m->now.begin[t->rows];
    for (long i = 0; i < many; i++) {
        long r = m->now.row[i];
        m->position[i] = n->root[r] + m->tree.depth[r * m->tree.slots + m->now.slot[i]] + 2;
    }
    add_noise(m->logits, many, h->vocabulary, h->ids, t->oov_ids, t->oov_count, m->now.row, m->position, n->temperature,
              n->stream, threads);
}

/* Rank the frontier's nodes' candidates, from node `first` to `end`. */
static void rank(const plan *p, const rooms *m, long size, long first, long end, int threads) {
    long at = first * p->K;
    rank_rows(m->logits + first * size, end - first, size, p->K, p->entropy < size ? p->entropy : -1, m->top + at,
              m->log_prob + at, m->entropy + first, m->log_norm + first, threads);
}

/* Move those of `count` candidates that may not follow after the others, and let them be impossible. *before:
   probability of tokens that were forbidden before, over that of the rest. Tokens that were not asked for are taken to be
   forbidden in the same share. Returns 0, and adds to *before, if others are needed in their place; also if a classifier
   reads more than probabilities. */
static int exclude(const plan *p, const uint8_t *follows, long count, int64_t *top, float *log_prob, double *before) {
    double lost = 0, others = 0;
    int forbidden = *before > 0;
    for (long c = 0; c < count; c++) *(follows[c] ? &others : &lost) += exp(log_prob[c]), forbidden |= !follows[c];
    if (!forbidden) return 1;
    if (p->network || lost >= MOST_EXCLUDED * others) {
        *before = (*before + lost) / fmax(1 - lost, 1e-9);
        return 0;
    }
    double among = log(others + (1 - lost - others) * others / (others + lost + *before));
    int64_t excluded[p->K];
    long left = 0, out = 0;
    for (long c = 0; c < count; c++)
        if (follows[c]) top[left] = top[c], log_prob[left++] = log_prob[c] - among;
        else excluded[out++] = top[c];
    for (long c = 0; c < out; c++) top[left + c] = excluded[c], log_prob[left + c] = -INFINITY;
    return 1;
}

/* Exclude what a constraint forbids after the frontier's nodes, whose candidates are ranked. Where few of them are
   forbidden, or few of those in their place, no mask is computed, and probabilities are not exact; see `exclude`. */
static void exclude_forbidden(const plan *p, const head *h, const text *t, const rooms *m, ask_after ask) {
    const trees *tree = &m->tree;
    long size = h->vocabulary + t->oov_count, many = m->now.begin[t->rows];
    for (long i = 0; i < many; i++) {
        long r = m->now.row[i], at = r * tree->slots + m->now.slot[i], length = tree->depth[at] + 1;
        int64_t path[length + 1];
        for (long step = length; step > 0; at = r * tree->slots + tree->parent[at]) path[--step] = tree->token[at];
        int64_t children[p->K], *top = m->top + i * p->K;
        float *log_prob = m->log_prob + i * p->K, *logits = m->logits + i * size;
        uint8_t follows[p->K];
        const uint32_t *mask = 0;
        double before = 0;
        int done = 0;
        for (int tries = 0; tries < (p->network ? 1 : TRIES) && !mask && !done; tries++) {
            if (tries) rank(p, m, size, i, i + 1, 1); /* without those that are excluded */
            long count = 0;
            for (; count < p->K && log_prob[count] > -INFINITY; count++) children[count] = token_of(h, t, r, top[count]);
            memset(follows, 1, p->K);
            mask = ask(r, path, length, children, count, follows, 0);
            done = !mask && exclude(p, follows, count, top, log_prob, &before);
            for (long c = 0; c < count; c++)
                if (!done && !follows[c]) logits[top[c]] = -INFINITY;
        }
        if (done || !(mask || (mask = ask(r, path, length, 0, 0, 0, 0)))) continue;
        mask_row(logits, h->vocabulary, h->ids, t->oov_ids + r * t->oov_count, t->oov_count, mask);
        rank(p, m, size, i, i + 1, 1);
    }
}

/* Cut the mask of the layers with a window, by positions: a key of the text stands at its own number, and one of the tree
   at that of its node. */
static void cut_masks(const text *t, const rooms *m, long many, long key_count, long window) {
    const trees *tree = &m->tree;
    memcpy(m->windowed, m->mask, many * key_count);
    for (long i = 0; i < many; i++) {
        long r = m->now.row[i], at = r * tree->slots + m->now.slot[i], unseen = m->position[i] - window + 1;
        uint8_t *sees = m->windowed + i * key_count;
        if (unseen > 0) memset(sees, 0, unseen < t->lengths[r] ? unseen : t->lengths[r]);
        for (long a = at; tree->column[a] >= 0; a = r * tree->slots + tree->parent[a])
            if (t->lengths[r] + tree->depth[a] < unseen) sees[t->text_slots + tree->column[a]] = 0;
    }
}

/* Run the draft over the frontier, whose nodes take the cache's columns from `column` on, to its logits. Returns the
   next column, or -1. */
static long expand(const head *h, const text *t, const rooms *m, long column, int threads) {
    const trees *tree = &m->tree;
    long many = m->now.begin[t->rows], size = h->hidden * sizeof(float), widest = 0;
    for (long r = 0; r < t->rows; r++) widest = most_of(widest, m->now.begin[r + 1] - m->now.begin[r]);
    long key_count = t->text_slots + column + widest;
    memset(m->mask, 0, many * key_count);
    for (long i = 0; i < many; i++) {
        long r = m->now.row[i], number = i - m->now.begin[r], at = r * tree->slots + m->now.slot[i];
        long above = r * tree->slots + tree->parent[at];
        tree->column[at] = column + number;
        m->token[i] = tree->token[at], m->position[i] = t->lengths[r] + tree->depth[at];
        m->first[i] = r * t->step, m->cache_slot[i] = m->first[i] + number, m->prefix[i] = 0;
        memcpy(m->features + i * h->hidden, m->states + (r * m->entries + 1 + tree->column[above]) * h->hidden, size);
        uint8_t *sees = m->mask + i * key_count;
        memset(sees, 1, t->lengths[r]);
        for (long a = at; tree->column[a] >= 0; a = r * tree->slots + tree->parent[a])
            sees[t->text_slots + tree->column[a]] = 1;
    }
    if (m->windowed != m->mask) cut_masks(t, m, many, key_count, window_of(h));
    rotations turns = {t->cosine, t->sine, h->layers->dim / 2, t->positions};
    cache keys = {t->keys, t->values, t->head, m->cache_slot, t->text_slots + column, 0};
    sight seen = {m->first, m->prefix, m->mask, m->windowed, key_count, 0};
    float *taps[h->count + 1];
    memset(taps, 0, sizeof taps);
    float *read = h->base == JOINED ? 0 : m->read;
    if (read_both(&h->read, h->table, h->embeddings, h->is_bf16, m->token, m->features, many, m->inner,
                  read ? read : m->x, threads))
        return -1;
    if (h->base == STATE) memcpy(m->x, m->features, many * size);
    if (h->base == NORMED)
        rms_norm(m->features, h->read.state_norm, h->read.epsilon, many, h->hidden, m->x, threads);
    if (decoder_layers(h->layers, h->count, m->x, read, &turns, m->position, many, NULL, 0, &keys, &seen, m->inner, taps,
                       threads))
        return -1;
    if (h->norm && h->normed) rms_norm(m->x, h->norm, h->read.epsilon, many, h->hidden, m->x, threads);
    for (long i = 0; i < many; i++) {
        long r = m->now.row[i], entry = 1 + column + i - m->now.begin[r];
        memcpy(m->states + (r * m->entries + entry) * h->hidden, m->x + i * h->hidden, size);
    }
    read_logits(h, t, m, m->x, threads);
    return column + widest;
}

/* Retain all nodes. */
static void retain_all(long rows, const rooms *m) {
    for (long r = 0; r < rows; r++) {
        uint8_t *stays = m->stays + r * m->tree.slots;
        memset(stays, 0, m->tree.slots), memset(stays, 1, m->tree.count[r]);
    }
}

/* Retain, when all levels are drafted, all nodes, or the most probable ones. */
static void rerank(const plan *p, long rows, const rooms *m) {
    retain_all(rows, m);
    for (long r = 0; r < rows; r++) {
        long at = r * m->tree.slots, count = m->tree.count[r];
        if (!p->reranked || count <= p->reranked) continue;
        best(m->tree.log_joint + at, 0, m->stays + at, 1, count, p->reranked, m->retained);
        memset(m->stays + at, 0, count);
        for (long i = 0; i < p->reranked; i++) m->stays[at + m->retained[i]] = 1;
    }
}

/* Let a budget decide about the nodes that are left: which of the next frontier to expand, if it has any, and which to
   verify (`left`) if that is none. Returns how many to expand, or -1 without memory. */
static long apply_budget(const budget_input *s, long rows, const rooms *m, double spent) {
    long widest = 0;
    int64_t counts[2];
    for (long r = 0; r < rows; r++) widest = most_of(widest, m->next.begin[r + 1] - m->next.begin[r]);
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < widest; i++) {
            long at = m->next.begin[r] + i;
            m->asked[r * widest + i] = at < m->next.begin[r + 1] ? m->next.slot[at] : -1;
        }
    if (select_nodes(s->model, s->row_weight, rows, m->tree.slots, m->tree.log_joint, 0, m->stays, m->tree.parent,
                     m->asked, widest, spent, s->most, m->expands, m->left, m->order, counts))
        return -1;
    long many = 0;
    for (long r = 0, at = 0; r < rows; r++) {
        long end = m->next.begin[r + 1];
        m->next.begin[r] = many;
        for (long i = 0; at < end; at++, i++)
            if (m->expands[r * widest + i]) m->next.row[many] = r, m->next.slot[many++] = m->next.slot[at];
    }
    return m->next.begin[rows] = many;
}

/* Write what is left of row r's nodes into columns of n slots (see nodes.c); the rest of these is dead. */
static void write_row(const rooms *m, long rows, long r, long n, int64_t *whole, float *real, float *score,
                      uint8_t *alive) {
    const trees *from = &m->tree;
    const int64_t *columns[] = {from->token, from->parent, from->depth, from->rank};
    const float *numbers[] = {from->log_prob, from->log_joint, from->entropy, from->most};
    long count = 0, begin = r * from->slots;
    for (long s = 0; s < from->count[r]; s++)
        if (m->left[begin + s]) m->put[s] = count, m->retained[count++] = s;
    for (long i = 0, out = r * n; i < n; i++, out++) {
        long at = begin + (i < count ? m->retained[i] : 0);
        for (int c = 0; c < 4; c++) whole[c * rows * n + out] = i < count ? columns[c][at] : 0;
        if (i && i < count) whole[rows * n + out] = m->put[from->parent[at]];
        for (int c = 0; c < 4; c++) real[c * rows * n + out] = i < count ? numbers[c][at] : -INFINITY;
        score[out] = i < count ? from->score[at] : -INFINITY;
        alive[out] = i < count;
    }
}

/* whole, real: (4, rows, n); score, alive: (rows, n), for the n that is returned. capped, passes: (rows). expanded:
   (levels, rows, width), the slots that each level drafted from as they were numbered then, -1 at first. room: of
   `room_of` bytes. Returns -1 for a token or a position that is not known, -2 where memory is short, -3 for a
   distribution that is NaN. */
long draft_phase(const plan *p, const head *h, const text *t, const ngrams *g, const noise *drawn,
                 const void *constraint, const budget_input *s, char *room, int64_t *whole, float *real, float *score,
                 uint8_t *alive, int64_t *capped, int64_t *passes, int64_t *expanded, int threads) {
    rooms m;
    lay_out_rooms(p, h, t, threads, room, &m);
    const trees *tree = &m.tree;
    for (long r = 0; r < t->rows; r++) {
        long at = r * tree->slots;
        tree->count[r] = 1, capped[r] = passes[r] = 0;
        tree->token[at] = t->root[r], tree->parent[at] = tree->depth[at] = tree->column[at] = -1, tree->rank[at] = 0;
        tree->log_prob[at] = tree->log_joint[at] = tree->most[at] = 0, tree->entropy[at] = NAN, tree->score[at] = 1;
        m.now.row[r] = m.now.begin[r] = r, m.now.slot[r] = 0;
        memcpy(m.states + r * m.entries * h->hidden, t->hidden + r * h->hidden, h->hidden * sizeof(float));
    }
    m.now.begin[t->rows] = t->rows;
    read_logits(h, t, &m, t->hidden, threads);
    double spent = s->start;
    for (long level = 0, column = 0;; level++) {
        long many = m.now.begin[t->rows];
        if (g->prior && raise_followers(g->text, g->stride, g->longest, g->lengths, tree->token, tree->parent,
                                        tree->slots, m.now.row, m.now.slot, many, m.logits, h->vocabulary, h->ids,
                                        t->oov_ids, t->oov_count, g->prior))
            return -2;
        if (drawn->temperature) make_noisy(h, t, &m, drawn, threads);
        rank(p, &m, h->vocabulary + t->oov_count, 0, many, threads);
        if (constraint) exclude_forbidden(p, h, t, &m, (ask_after)constraint); /* last, since nothing may raise these */
        for (long i = 0; i < many; i++)
            if (m.log_norm[i] != m.log_norm[i]) return -3;
        long next = 0;
        for (long r = 0; r < t->rows; r++) {
            long begin = m.now.begin[r], wide = m.now.begin[r + 1] - begin;
            passes[r] += wide > 0;
            memcpy(expanded + (level * t->rows + r) * p->width, m.now.slot + begin, wide * sizeof *expanded);
            m.next.begin[r] = next;
            next = join_row(p, h, t, &m, r, next, capped + r);
        }
        m.next.begin[t->rows] = next;
        if (level == p->levels - 1) next = 0;
        if (!next) memset(m.next.begin, 0, (t->rows + 1) * sizeof *m.next.begin);
        next ? retain_all(t->rows, &m) : rerank(p, t->rows, &m);
        if (s->model) {
            spent += s->model->draft[many];
            if ((next = apply_budget(s, t->rows, &m, spent)) < 0) return -2;
        }
        if (!next) break;
        frontier last = m.now;
        m.now = m.next, m.next = last;
        if ((column = expand(h, t, &m, column, threads)) < 0) return -1;
    }
    if (!s->model) m.left = m.stays;
    long n = 0;
    for (long r = 0; r < t->rows; r++) {
        long count = 0;
        for (long i = 0; i < tree->count[r]; i++) count += m.left[r * tree->slots + i];
        n = most_of(n, count);
    }
    for (long r = 0; r < t->rows; r++) write_row(&m, t->rows, r, n, whole, real, score, alive);
    return n;
}
