/** The data of the report page: plain JSON, written by src/headcount/runs/report/ in Python and drawn here. Missing numbers are null.
 *
 * The Python tests check every report against these types, so a field that is added or renamed here must be added or renamed there. A HeadNumber is an
 * index into RunData.heads. Every string may come from a model or a data set and is shown as text, never as markup.
 */
export type HeadNumber = number;
export type Maybe = number | null;

export interface Report {
  schema: 1;
  /** One run, or two that are compared: the first is A, the second B. */
  runs: RunData[];
  /** The comparison B − A of two runs with the same heads; else null. */
  comparison: RunComparison | null;
  /** Sentences about what is not in this file, and why (the size limit). */
  left_out: string[];
  /** Set by `headcount serve`: the live actions that the server offers; null in a file. */
  live: Live | null;
}

/** Everything that one run folder holds, by kind of artifact. A part that the run has not computed is null or empty. */
export interface RunData {
  name: string;
  command: string;
  task: string | null;
  created: string;
  updated: string;
  seed: number;
  model: { name: string; class_name: string; model_type: string; n_parameters: number; weights: string };
  versions: Record<string, string>;
  machine: Record<string, string | number | null>;
  config: Record<string, unknown>;
  data: Record<string, string>;
  /** Up to three sentences: the number of heads, how many can be removed, and the speed-up. */
  summary: string[];
  warnings: string[];
  heads: string[]; // addresses such as L0H3, cross.L2H1
  blocks: Block[];
  scores: Score[];
  /** Null where no head was removed alone. */
  verdicts: Verdicts | null;
  roles: Roles | null;
  curves: Curves | null;
  bench: BenchRow[];
  profiles: HeadProfiles | null;
  attention: Attention | null;
  /** True if the run has attention maps and all of them were left out to limit the size of the file. */
  attention_left_out: boolean;
  /** The roles that were not tested. */
  tables: Table[];
  /** The studies of the run, and the papers whose experiments it holds: a page each. */
  studies: StudyPage[];
  papers: PaperPage[];
}

/** One attention block: a row of a map. */
export interface Block {
  path: string; // of the module
  kind: string; // encoder-self, decoder-self, cross, …: one map each
  stack: string; // part of the address before the dot, "" if there is one stack
  layer: number;
  heads: HeadNumber[];
  /** For every head the number of its key-value group within the block; null where every head has its own keys and values. */
  kv_group: number[] | null;
}

/** One number per head that a map can be coloured by. */
export interface Score {
  name: string;
  about: string; // a sentence
  kind: "importance" | "description";
  higher_is_keep: boolean;
  values: Maybe[];
  stderr: Maybe[] | null;
  /** The ends of 95 % intervals, corrected for skewness; null for a head whose examples are too few or too skewed for one. */
  low: Maybe[] | null;
  high: Maybe[] | null;
  /** Whether each value differs significantly from zero by the test of its interval, corrected over all heads; null if that cannot be tested. */
  significant: boolean[] | null;
  n_examples: number | null;
  /** Heads in the order of removal, with ties broken as headcount breaks them; null for descriptions. */
  removal_order: HeadNumber[] | null;
  /** Groups of heads that share keys and values, in the order of removal; null for descriptions, and where every head is removed by itself. */
  group_removal_order: HeadNumber[][] | null;
}

/** What removing each head alone costs at most, on the report split. It says nothing about several heads removed together. */
export interface Verdicts {
  method: string; // the ablation
  unit: "nats" | "points"; // of loss, or of right answers; points are shares here, 0.005 is half a point
  /** What a safe head may cost on average, and the most that one example counts. */
  tolerance: number;
  clip: number;
  level: number;
  n_examples: number;
  n_documents: number | null;
  /** With fewer examples (documents) there is no verdict; so many more are missing for a head that changes nothing to be safe whatever others do. */
  n_needed: number;
  n_missing: number;
  /** Why there is no verdict; "" where there is. */
  reason: string;
  /** For every head the mean that was observed, its upper bound, the p-value corrected over heads, and whether the head is safe. */
  cost: Maybe[];
  bound: Maybe[];
  q: Maybe[];
  safe: (boolean | null)[];
}

/** Which role each head has, and the statistics of every tested head and role. */
export interface Roles {
  /** All roles that were tested. */
  names: string[];
  about: string[]; // a sentence each
  letters: string[]; // one or two letters each, for marks
  /** Roles of every head: indices into `names`. */
  labels: number[][];
  /** One row per head and role, by column. */
  rows: {
    head: HeadNumber[];
    role: number[];
    bias: Maybe[]; // how much more attention than chance; 1 is chance
    low: Maybe[];
    high: Maybe[];
    q: Maybe[];
    effect: Maybe[];
    normalised: Maybe[];
    accuracy: Maybe[];
    accuracy_low: Maybe[];
    accuracy_high: Maybe[];
    baseline: Maybe[];
    baseline_offset: Maybe[];
    has_role: boolean[];
    by_argmax: boolean[];
    n: Maybe[];
    /** Roles of content are compared with the head's distance twin, which attends by distance alone; the numbers are null for other roles, and where too few
     * pairs could be compared. The fields are missing in reports of older versions. */
    is_content?: (boolean | null)[];
    compared_bias?: Maybe[]; // the bias at the offsets that are compared
    twin_bias?: Maybe[];
    explained?: Maybe[]; // (twin_bias − 1) / (compared_bias − 1)
    excess?: Maybe[]; // attention to the sieve, head minus twin
    excess_low?: Maybe[];
    excess_high?: Maybe[];
  };
  /** For heads with a twin, the mean attention by offset to the sieve of the role of largest excess mass, and that of the twin. */
  curves?: { head: HeadNumber; role: number; offsets: number[]; attention: number[]; twin: number[] }[];
  /** Labels of content by sentences' own annotations and, the mean over swaps, by those of others of equal length; `ratio` estimates the share of false labels. */
  swapped?: { n_swaps: number; n_sentences: number; labels: number; swapped_labels: number; ratio: Maybe } | null;
  definition?: string; // the rule of the labels
  /** The best head of every role that both halves of the sentences show: chosen by accuracy on one half, all numbers of the other half. Null if the
   * run did not choose them. */
  best: { role: number; head: HeadNumber; accuracy: Maybe; accuracy_low: Maybe; accuracy_high: Maybe; baseline: Maybe; chance: Maybe; n: Maybe }[] | null;
  /** The best head of every dependency relation: head and offset are chosen on one half of the sentences, the numbers are those of the other half. */
  relations: {
    role: number;
    head: HeadNumber;
    accuracy: Maybe;
    baseline: Maybe;
    baseline_offset: Maybe;
    difference: Maybe;
    low: Maybe;
    high: Maybe;
    q: Maybe; // of the difference, by the test of the interval, corrected over all relations
    n: Maybe;
    holds: boolean; // q < 0.05 and the difference above 0; false if no head beats the baseline
  }[];
  n_sentences: number | null;
  /** The test is whether the bias exceeds `tau` (3: three times the attention of chance); q belongs to that test, with level `alpha`. */
  tau: number;
  alpha: number;
  /** Sentences that could not be aligned, and why. */
  skipped: string[];
}

/** Quality and cost of pruned models by number of heads, against the dense model. */
export interface Curves {
  metric: string; // "accuracy", "bleu", … or "loss"
  higher_is_better: boolean;
  dense: { value: number; loss: number; n_examples: number; low: Maybe; high: Maybe; parameters: number; bytes: number; flops: number; kv_bytes_per_token: number; tokens: number /* that the FLOPs are counted for */ };
  points: Point[];
  /** How much worse a pruned model may be, as stated before: "1%" of the dense model's metric or "0.5pt"; empty if no margin was stated. */
  margin: string;
  /** Of every number of heads the point that the selection split chose, most heads first. */
  by_size: string[];
  /** The sizes that were tested on the report split from large to small, each at 95 %, up to the first that failed; empty without a margin. */
  sizes: { point: string; keep: number; bound_text: string; verdict: Verdict | null }[];
  /** The model that the summary is about: the smallest certified one, or the first that failed; without a margin, the best one on the selection split. Null if
   * no model lost a head, or none was evaluated on the selection split. */
  chosen: { point: string; verdict: Verdict | null } | null;
  /** How many heads go together (1, or the size of a KV group). */
  unit: number;
  /** By method the command that prunes to a number of heads that was not measured: `{keep}` stands for it. A method that prunes some kinds of attention only has
   * none, since --keep counts heads of these kinds there. */
  commands: Record<string, string>;
}

/** Against a margin: the bound is below it, the model loses more than it, or neither is shown. */
export type Verdict = "certified" | "worse" | "undecided";

/** One pruned model, measured. */
export interface Point {
  id: string; // of this model alone
  method: string; // label: "surgeon", "gradient + repair", …
  is_random: boolean;
  is_trained: boolean; // weights were trained, by the method or in a recovery
  keep: number;
  seed: number;
  value: number; // the metric, or the loss where there is none
  loss: number;
  difference: number; // of `value` from the dense model's
  low: Maybe; // the difference between the two bounds of its test, each one-sided at 95 %
  high: Maybe;
  /** How much worse the model is at most, 95 %, one-sided, in units of the metric; it holds for this model alone. */
  bound: Maybe;
  bound_text: string; // the same in words: "at most 1.3 points worse by accuracy"
  procedure: string; // Tango, paired bootstrap, betting
  margin: string; // of the verdict; empty without one
  verdict: Verdict | null;
  /** How many examples only the dense model gets right, and how many only this one; null where answers are not right or wrong. */
  right_to_wrong: number | null;
  wrong_to_right: number | null;
  loss_difference: Maybe; // of the loss from the dense model's
  /** Whether output projections were refitted, or hold means of removed heads, so that the plan alone does not give this model. */
  is_repaired: boolean;
  removed: HeadNumber[];
  parameters: number;
  bytes: number;
  flops: number;
  kv_bytes_per_token: number;
  /** The command that makes this model again. */
  command: string;
}

/** The time of one forward pass of a model, measured side by side with its dense model. */
export interface BenchRow {
  of: string; // label of the pruned model
  /** The id of its point, its method, number of heads and seed; null if the artifact of the pruned model is missing. */
  point: string | null;
  method: string | null;
  keep: number | null;
  seed: number | null;
  name: "dense" | "masked" | "removed";
  batch: number;
  length: number;
  seconds: number; // median of one pass
  low: number; // quartiles
  high: number;
  speedup: number; // against dense: exp of the mean over rounds of the log-ratio
  speedup_low: Maybe; // its 95 % interval by t over rounds; null below 15 rounds
  speedup_high: Maybe;
  rounds: number;
  is_noisy: boolean; // quartiles farther apart than a third of the median
  is_apart: boolean; // the interval of its speed-up does not include 1; only then the page states a difference
  is_odd: boolean; // masked, and faster than the dense model, though masks save no work
}

/** Head profiles: what each head attends to, over all sentences of the corpus. Arrays are indexed by head. */
export interface HeadProfiles {
  n_sentences: number;
  /** Share of attention by the distance key − query in words; `distances` names the bins, e.g. "≤ −5", "−4", …, "0", …, "≥ 5". */
  distances: string[];
  distance: Maybe[][];
  /** Share of attention by part of speech of the key word, and the share that even attention has in each kind of block. The last name is "no word": delimiters. */
  pos: { names: string[]; share: Maybe[][]; expected_by_kind: Record<string, number[]> } | null;
  /** Share of attention on the other word of a dependency arc, by relation: from dependent to head and back. */
  relation: { names: string[]; share: Maybe[][]; expected_by_kind: Record<string, number[]> } | null;
  entropy: Maybe[]; // mean, nats
  confidence: Maybe[]; // mean of the largest weight
  /** The nearest heads of the same kind of attention by mean Jensen–Shannon distance (0 = the same, 1 = nothing in common). */
  similar: [HeadNumber, number][][];
  /** Tokens whose attention is shown: from the most confident, from the middle, and at random. */
  examples: { top: Example[]; middle: Example[]; random: Example[] }[];
}

/** One query token of a sentence with what it attends to most. */
export interface Example {
  tokens: string[]; // a window of the sentence
  query: number; // index into tokens
  keys: [number, number][]; // (index into tokens, weight), the strongest
  /** For cross-attention, the text that the query is from; null otherwise. */
  query_tokens: string[] | null;
  weight: number;
}

/** Attention maps of a few sentences. */
export interface Attention {
  sentences: Sentence[];
  /** Maps by sentence and block: base64 of raw deflate of bytes round(255·√a), [heads of the block, queries, keys]; null if left out for size. */
  maps: (string | null)[][]; // [sentence][block]; the order of RunData.blocks
  /** The heads of each block whose maps are included (indices into block.heads); null for all. */
  included: (number[] | null)[];
}

/** A sentence whose attention maps are shown. */
export interface Sentence {
  id: string;
  /** The side that encoder-self attends over, or the only side. */
  source: Side;
  /** The decoder's side of an encoder–decoder: queries of cross-attention; null otherwise. */
  target: Side | null;
  causal: boolean; // of the only side
}

/** The tokens of a text, with words and dependencies if they are known. */
export interface Side {
  tokens: string[];
  special: boolean[]; // [CLS], </s>, padding …
  /** Tokens that the tokenizer does not know and that the model read as one and the same; missing or null if there are none. */
  unknown?: boolean[] | null;
  /** For every token the number of its word, −1 for none; null if words are not known. */
  word: number[] | null;
  words: string[] | null;
  pos: string[] | null; // by word
  /** Gold dependencies: [dependent word, head word, relation]. */
  arcs: [number, number, string][] | null;
  /** Language of the text as a BCP 47 tag ("en", "pt-BR"), for screen readers and fonts; missing or null if it is not known. */
  lang?: string | null;
}

/** The comparison of two runs: B − A. */
export interface RunComparison {
  /** The two runs, in one line. */
  title: string;
  /** Scores that both runs have: B − A per head, and rank correlation. */
  scores: { name: string; difference: Maybe[]; significant: boolean[] | null; spearman: Maybe; low: Maybe; high: Maybe }[];
  /** Heads whose labels differ, among the roles that were tested in both runs. */
  roles: { head: HeadNumber; a: number[]; b: number[] }[] | null; // indices into runs[0].roles.names and runs[1].roles.names
  /** Roles that were tested in one of the runs only. */
  roles_only: { a: string[]; b: string[] };
  /** The dense models on the same examples; null if the data differ. */
  outcomes: { both: number; only_a: number; only_b: number; neither: number; p: Maybe; test: string; metric: string; a: number; b: number } | null;
  /** Entries of configuration, model and data that differ. */
  config: { key: string; a: string; b: string }[];
  warnings: string[];
}

/** A table that is shown as it is. */
export interface Table {
  name: string;
  about: string;
  columns: string[];
  rows: (string | number | boolean | null)[][];
}

/** A study of the run. */
export interface StudyPage {
  name: string;
  about: string;
  command: string; // that measured it; "" if it is not known
  conditions: string[]; // sentences: model, task, seed, number of examples
  result: StudyResultData;
}

/** A paper on the model of the run, with its experiments in order. */
export interface PaperPage {
  name: string; // such as michel2019
  title: string;
  bibtex: string;
  command: string;
  conditions: string[];
  items: PaperItem[];
}

/** An experiment of a paper. */
export interface PaperItem {
  id: string; // such as M3
  title: string;
  part: string; // where it stands in the paper, such as "Fig. 3"
  /** Why there is no result; "" if there is one. */
  reason: string;
  command: string;
  result: StudyResultData | null;
  /** What the paper reports. */
  published: StudyTable | null;
}

/** What a study measured. */
export interface StudyResultData {
  study: string; // its name with the options that differ from their defaults
  sentence: string; // the verdict
  notes: string[];
  tables: StudyTable[];
  figures: StudyFigure[];
}

export interface StudyTable {
  name: string;
  title: string;
  columns: StudyColumn[];
  rows: (string | number | boolean | null)[][];
  /** False for tables that are too long to read as a whole. */
  is_printed: boolean;
}

export interface StudyColumn {
  name: string;
  unit: string;
  format: string; // as Python writes it: ".2f", "+.3g", ".1%", or ""
  /** The columns that hold the ends of the interval around its numbers. */
  interval: [string, string] | null;
}

export type StudyFigure = LineFigure | BarFigure | HeatMapFigure | ScatterFigure | HistogramFigure;

/** What an axis shows; `ticks` are numbers that bear a name; a count has whole ticks; `limits` are what is drawn, empty for all values. */
export interface FigureAxis {
  label: string;
  unit: string;
  is_share: boolean;
  ticks: [number, string][];
  is_count: boolean;
  limits: number[]; // two, or none
}

/** Lines with their intervals, which are empty where there are none; a control is grey; `start` is the point (x, y) of the dense model, empty if there is none.
 * References are horizontal lines. */
export interface LineFigure {
  kind: "lines";
  name: string;
  title: string;
  x: FigureAxis;
  y: FigureAxis;
  table: string; // the table that holds the numbers
  n: Maybe;
  n_unit: string;
  note: string; // a line about the figure, such as a correlation, or what all series share
  lines: { label: string; x: number[]; y: Maybe[]; low: Maybe[]; high: Maybe[]; is_control: boolean; start: number[] }[];
  references: { label: string; y: number }[];
}

/** Bars by category (the axis x), those of several series side by side or stacked, standing or lying. */
export interface BarFigure {
  kind: "bars";
  name: string;
  title: string;
  x: FigureAxis;
  y: FigureAxis;
  table: string;
  n: Maybe;
  n_unit: string;
  note: string; // a line about the figure, such as a correlation, or what all series share
  categories: string[];
  bars: { label: string; values: Maybe[]; low: Maybe[]; high: Maybe[] }[];
  is_stacked: boolean;
  is_horizontal: boolean;
}

/** A coloured cell for every row and column; `value` says what the colours show, `marks` which cells bear a dot. */
export interface HeatMapFigure {
  kind: "heat map";
  name: string;
  title: string;
  x: FigureAxis;
  y: FigureAxis;
  table: string;
  n: Maybe;
  n_unit: string;
  note: string; // a line about the figure, such as a correlation, or what all series share
  rows: string[];
  columns: string[];
  values: Maybe[][];
  value: FigureAxis;
  marks: boolean[][];
  mark_label: string;
  is_diverging: boolean;
  missing_label: string; // what a cell without a value means
}

/** Points in groups. */
export interface ScatterFigure {
  kind: "scatter";
  name: string;
  title: string;
  x: FigureAxis;
  y: FigureAxis;
  table: string;
  n: Maybe;
  n_unit: string;
  note: string; // a line about the figure, such as a correlation, or what all series share
  groups: { label: string; x: number[]; y: number[]; names: string[] }[];
}

/** How many values lie between each edge and the next; groups are stacked. */
export interface HistogramFigure {
  kind: "histogram";
  name: string;
  title: string;
  x: FigureAxis;
  y: FigureAxis;
  table: string;
  n: Maybe;
  n_unit: string;
  note: string; // a line about the figure, such as a correlation, or what all series share
  edges: number[];
  groups: { label: string; counts: number[] }[];
}

/** The connection of a page to `headcount serve`. */
export interface Live {
  token: string; // sent back as the header X-Headcount-Token
  /** For each run whether its model is available, so that live actions can be used; if not, the reason. */
  runs: { id: string; can_run: boolean; why_not: string }[];
}

/** Live actions: POST requests with JSON under /api/RUN/ACTION, answered by JSON; an error is {error: string} with status 4xx or 5xx. */
export interface LiveApi {
  /** A new sentence: the attention maps of all heads; a note if it has tokens that the tokenizer does not know. */
  "attend": { ask: { text: string; pair: string | null }; answer: { attention: Attention; note: string | null } };
  /** Evaluates the model with heads gated off, on the first `limit` examples. */
  "ablate": { ask: { heads: HeadNumber[]; limit: number }; answer: { metric: string; value: number; dense: number; difference: number; low: Maybe; high: Maybe; p: Maybe; test: string; n: number } };
  /** Prunes to fewer heads than there are and writes the model into the run folder. `repair` null: as the models of this method in the run, else as the method does
   * by default. `seed`, `floor` and `unit` may be missing: 0, 0, "kv_group". */
  "prune": {
    ask: { method: string; keep: number; protect: HeadNumber[]; repair: boolean | null; seed: number; floor: number; unit: "kv_group" | "even" };
    answer: { folder: string; point: Point };
  };
}
