// What the bundler takes along with the module that imports it.
declare module '*.css';

declare module '*.svg' {
  const address: string;
  export default address;
}
