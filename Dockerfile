# The daemon as an image: docker build -t leasehold .
# Job handlers are added on top: FROM leasehold, COPY your modules, ENV HANDLERS=/app/jobs (docs/deployment.md).
# `npm run image:check` runs these steps without Docker.

FROM node:22-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
COPY scripts ./scripts
COPY tsconfig.json ./
COPY server ./server
COPY migrations ./migrations
RUN node scripts/bootstrap.mjs build

FROM node:22-bookworm-slim
ENV NODE_ENV=production
ENV HOST=0.0.0.0
WORKDIR /app
COPY --from=build /app/package.json ./package.json
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/dist ./dist
COPY --from=build /app/migrations ./migrations
USER node
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 CMD ["node", "-e", "fetch('http://127.0.0.1:' + (process.env.PORT || 8080) + '/livez').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# No shell in between: SIGTERM reaches the daemon, which drains.
STOPSIGNAL SIGTERM
ENTRYPOINT ["node", "dist/main.js"]
