// Questions that jobs ask people: read them, answer them, and create links for people without a key.
import type { LinkOptions, QuestionListOptions } from './generated/api-options.ts';
import type { NewQuestionLink, Question, QuestionLink } from './generated/api-types.ts';
import { type List, listAt } from './pages.ts';
import { type CallOptions, type Transport, toBody } from './transport.ts';

export interface QuestionAnswer {
  /** Must match the schema of the question, except for fields that the action sets. */
  answer?: Record<string, unknown> | undefined;
  /** The name of one of its actions, if it has any. */
  action?: string | undefined;
  /** The person who answers; by default the key. */
  author?: string | undefined;
}

export class Questions {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Newest first. */
  list(options: QuestionListOptions & CallOptions = {}): List<Question> {
    const { signal, timeoutMs, ...filter } = options;
    return listAt(this.#transport, '/api/questions', 'questions', filter, { signal, timeoutMs });
  }

  get(id: string, call: CallOptions = {}): Promise<Question> {
    return this.#send('GET', pathOf(id), { ...call, repeatable: true });
  }

  /**
   * Exactly one answer counts; a later one rejects with QUESTION_CLOSED. Not repeated after a lost answer, because the
   * repetition could not be distinguished from another person's answer.
   */
  answer(id: string, given: QuestionAnswer, call: CallOptions = {}): Promise<Question> {
    // The fields of the answer are the user's own: they are sent as they are.
    return this.#send('POST', `${pathOf(id)}/answer`, { ...call, body: given });
  }

  /** Creates a link that opens the form of the question without sign-in. Only this answer has its `url`. */
  createLink(id: string, options: LinkOptions = {}, call: CallOptions = {}): Promise<NewQuestionLink> {
    return this.#send('POST', `${pathOf(id)}/links`, { ...call, body: toBody(options) });
  }

  async links(id: string, call: CallOptions = {}): Promise<QuestionLink[]> {
    const options = { ...call, repeatable: true };
    return (await this.#send<{ links: QuestionLink[] }>('GET', `${pathOf(id)}/links`, options)).links;
  }

  async revokeLink(id: string, linkId: string, call: CallOptions = {}): Promise<void> {
    const path = `${pathOf(id)}/links/${encodeURIComponent(linkId)}`;
    await this.#transport.request('DELETE', path, { ...call, repeatable: true });
  }

  async #send<T>(method: string, path: string, options: Parameters<Transport['request']>[2]): Promise<T> {
    return (await this.#transport.request<T>(method, path, options)).body;
  }
}

function pathOf(id: string): string {
  return `/api/questions/${encodeURIComponent(id)}`;
}
