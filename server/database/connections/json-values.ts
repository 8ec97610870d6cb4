// JSON values of rows. The driver parses a row when it arrives, and all rows of a turn of the event loop in that turn,
// so a few large documents would delay all other work. Here only small documents are parsed at once. The others are
// parsed in separate turns, before the rows of the statement are returned.
import { largeBytes, ownTurn } from '../../kernel/clock.ts';
import { parseJsonInTurns } from '../../kernel/json/parse-in-turns.ts';

// Smaller values are not counted; most have a few bytes.
const countedFrom = 256;
// Smaller documents wait for another turn only if very many arrive at once.
const smallChars = 8192;
// Half a megabyte of small objects takes about 35 ms to parse.
const smallCharsPerTurn = 262_144;

/** The text of a value that is parsed later. */
class UnparsedJson {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** One per pool. */
export class JsonValues {
  #charsInTurn = 0;
  /**
   * The number of unparsed values. It includes rows of failed statements, so later statements may check their columns
   * in vain.
   */
  #unparsed = 0;

  /** Called by the driver. */
  readonly parse = (text: string): unknown => {
    if (text.length < countedFrom) return JSON.parse(text);
    if (this.#charsInTurn === 0) setImmediate(() => (this.#charsInTurn = 0));
    const limit = text.length < smallChars ? smallCharsPerTurn : largeBytes;
    // This includes the first of a turn if it is large, because the rest of the turn is not known yet.
    if (this.#charsInTurn + text.length > limit) {
      this.#unparsed += 1;
      return new UnparsedJson(text);
    }
    this.#charsInTurn += text.length;
    return JSON.parse(text);
  };

  get isComplete(): boolean {
    return this.#unparsed === 0;
  }

  /** Parses the remaining values of the rows, in as many turns as needed. */
  async complete<R extends object>(rows: R[]): Promise<R[]> {
    let charsLeft = 0;
    for (const row of rows as Record<string, unknown>[]) {
      for (const name in row) {
        const value = row[name];
        if (!(value instanceof UnparsedJson)) continue;
        this.#unparsed -= 1;
        const { text } = value;
        if (text.length >= largeBytes) {
          row[name] = await parseJsonInTurns(text);
          continue;
        }
        if (text.length > charsLeft) {
          await ownTurn();
          charsLeft = largeBytes;
        }
        charsLeft -= text.length;
        row[name] = JSON.parse(text);
      }
    }
    return rows;
  }
}
