// Files that the bundler includes with the module that imports them.
declare module '*.css';

declare module '*.svg' {
  const address: string;
  export default address;
}
