// The process of a test's own database server: stopped the hard way, and started again on the same files.
import type { ChildProcess } from 'node:child_process';
import { type ClusterDirectory, spawnPostmaster } from '../../../server/embedded-postgres/cluster.ts';

interface PostmasterOptions {
  port: number;
  settings: string[];
  logFile: string;
}

/** A server that tests can crash. */
export interface CrashableServer {
  url: string;
  port: number;
  place: ClusterDirectory;
  /** `pg_ctl stop -m immediate`: the server is gone until `restart`. */
  halt(): Promise<void>;
  /** Starts it on its files, from which it recovers, and waits until it answers. */
  restart(): Promise<void>;
}

export class Postmaster {
  readonly #place: ClusterDirectory;
  readonly #options: PostmasterOptions;
  #process: ChildProcess;

  constructor(place: ClusterDirectory, options: PostmasterOptions) {
    this.#place = place;
    this.#options = options;
    this.#process = spawnPostmaster(place, options);
  }

  start(): void {
    this.#process = spawnPostmaster(this.#place, this.#options);
  }

  async halt(): Promise<void> {
    const postmaster = this.#process;
    if (postmaster.exitCode !== null || postmaster.signalCode !== null) return;
    const exited = new Promise((resolve) => postmaster.once('exit', resolve));
    postmaster.kill('SIGQUIT');
    await exited;
  }
}
