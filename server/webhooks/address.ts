// Which addresses a tenant's URL may reach. Only addresses of the public internet: everything
// special (private, loopback, link-local, shared, mapped, translated, reserved) is inside somebody's network.
import { lookup as systemLookup } from 'node:dns';
import type { LookupFunction } from 'node:net';
import ipaddr from 'ipaddr.js';

export class AddressRefused extends Error {
  override name = 'AddressRefused';
}

// Looks public and is not: the host of every Azure machine.
const internalButPublicLooking = new Set(['168.63.129.16']);

/** False for everything that is not an address at all, too. */
export function isPublicAddress(text: string): boolean {
  const bare = text.replace(/^\[|\]$/g, '');
  if (!ipaddr.isValid(bare)) return false;
  // An IPv4 address mapped into IPv6 reaches the same host: it is judged as what it is.
  const address = ipaddr.process(bare);
  if (address.range() !== 'unicast' || internalButPublicLooking.has(address.toString())) return false;
  // Of IPv6 only 2000::/3 is given out to anybody.
  return address.kind() === 'ipv4' || ((address.toByteArray()[0] ?? 0) & 0xe0) === 0x20;
}

/** The URL parser has already turned 2130706433, 0x7f.1 and the like into dotted form. */
export function isAddressLiteral(hostname: string): boolean {
  return ipaddr.isValid(hostname.replace(/^\[|\]$/g, ''));
}

/**
 * A lookup for `connect`: the very addresses that are checked are those that are connected to, so a
 * name that changes its mind between check and use gains nothing.
 */
export function publicLookup(resolve: LookupFunction = systemLookup as unknown as LookupFunction): LookupFunction {
  return (hostname, options, callback) => {
    resolve(hostname, { ...options, all: true }, (error, found) => {
      if (error) return callback(error, []);
      const addresses = typeof found === 'string' ? [{ address: found, family: found.includes(':') ? 6 : 4 }] : found;
      const refused = addresses.find(({ address }) => !isPublicAddress(address));
      if (refused !== undefined || addresses.length === 0) {
        return callback(new AddressRefused('the name leads to an address that is not public'), []);
      }
      if (options.all) return callback(null, addresses);
      const [first] = addresses;
      callback(null, first?.address ?? '', first?.family ?? 4);
    });
  };
}
