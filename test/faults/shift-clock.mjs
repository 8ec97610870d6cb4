// Loaded before a daemon: its clock is CLOCK_SHIFT_MS off. The monotonic clock is not changed, as on a real machine.
const shiftMs = Number(process.env.CLOCK_SHIFT_MS);
const RealDate = Date;

class ShiftedDate extends RealDate {
  constructor(...args) {
    if (args.length === 0) super(RealDate.now() + shiftMs);
    else super(...args);
  }

  static now() {
    return RealDate.now() + shiftMs;
  }
}

globalThis.Date = ShiftedDate;
