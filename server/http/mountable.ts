// The API as one handler for the server of another program, of any version of Express or of none. An Express app that is
// mounted as such would take settings and prototypes from the app around it.
import type { Express, NextFunction, Request, RequestHandler, Response } from 'express';

/** The app is created at the first request: a hundred routes take longer than everything else of a start. */
export function mountable(create: () => Promise<Express>): RequestHandler {
  let creating: Promise<Express> | undefined;
  let app: Express | undefined;
  return async (request, response, next) => {
    if (app === undefined) {
      try {
        creating ??= create();
        app = await creating;
      } catch (error) {
        creating = undefined;
        return next(error);
      }
    }
    const restore = keepPrototypes(request, response);
    app(request, response, ((error?: unknown) => {
      restore();
      next(error);
    }) as NextFunction);
  };
}

/** Express gives request and response its own prototypes; later handlers of the host need theirs. */
function keepPrototypes(request: Request, response: Response): () => void {
  const [ofRequest, ofResponse] = [Object.getPrototypeOf(request), Object.getPrototypeOf(response)];
  return () => {
    Object.setPrototypeOf(request, ofRequest);
    Object.setPrototypeOf(response, ofResponse);
  };
}
