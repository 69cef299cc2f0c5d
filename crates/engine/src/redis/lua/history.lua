-- Part of a stream, which begins if there is none. KEYS: list, hash. ARGV: generation, candidate for the epoch, milliseconds
-- the state lives, offset beside the part or -1, number of entries at most or -1, 1 for newest first, size of the history, bytes
-- of the entries at most.
-- Returns epoch, top, the positions of epochs before that mean the same, and entries in the order that was asked for: what was
-- asked for is in them, perhaps among more; and how many bytes the next one has that does not fit, 0 if there is none. `STALE`: the
-- caller is behind.
local c, k, m = redis.call, KEYS[1], KEYS[2]
@begin
@after
local e, top, before = begin(k, m, ARGV[2], ARGV[1], '', '0')
if not e then return redis.error_reply('STALE another generation of the data') end
if ARGV[3] ~= '0' then c('PEXPIRE', m, ARGV[3]) end
@page
return { e, top, before or '', entries, more }
