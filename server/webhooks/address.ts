// Which addresses a tenant's URL may reach: only those of the public internet, none that is special (private, loopback,
// link-local, shared, mapped, translated, reserved).
import { lookup as systemLookup } from 'node:dns';
import type { LookupFunction } from 'node:net';
import ipaddr from 'ipaddr.js';

export class AddressRefused extends Error {
  override name = 'AddressRefused';
}

// In a public range, but the host of every Azure machine.
const internalButPublicLooking = new Set(['168.63.129.16']);

/** False also for a text that is not an address. */
export function isPublicAddress(text: string): boolean {
  const bare = text.replace(/^\[|\]$/g, '');
  if (!ipaddr.isValid(bare)) return false;
  // An IPv4 address mapped into IPv6 reaches the same host, so it is checked as IPv4.
  const address = ipaddr.process(bare);
  if (address.range() !== 'unicast' || internalButPublicLooking.has(address.toString())) return false;
  // The only public range of IPv6 is 2000::/3.
  return address.kind() === 'ipv4' || ((address.toByteArray()[0] ?? 0) & 0xe0) === 0x20;
}

/** The URL parser has already turned forms such as 2130706433 and 0x7f.1 into dotted ones. */
export function isAddressLiteral(hostname: string): boolean {
  return ipaddr.isValid(hostname.replace(/^\[|\]$/g, ''));
}

/**
 * A lookup for `connect`: the addresses that are checked are those that are connected to, so a name that changes its
 * address between check and use is refused too.
 */
export function publicLookup(resolve: LookupFunction = systemLookup as unknown as LookupFunction): LookupFunction {
  return (hostname, options, callback) => {
    resolve(hostname, { ...options, all: true }, (error, found) => {
      if (error) return callback(error, []);
      const addresses = typeof found === 'string' ? [{ address: found, family: found.includes(':') ? 6 : 4 }] : found;
      const refused = addresses.find(({ address }) => !isPublicAddress(address));
      if (refused !== undefined || addresses.length === 0) {
        return callback(new AddressRefused('the name resolves to an address that is not public'), []);
      }
      if (options.all) return callback(null, addresses);
      const [first] = addresses;
      callback(null, first?.address ?? '', first?.family ?? 4);
    });
  };
}
