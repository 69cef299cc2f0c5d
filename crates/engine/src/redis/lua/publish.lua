-- KEYS: list of entries (also the name of the channel of publish/subscribe), hash of the stream's state.
-- ARGV: 1 epoch, 2 number of publications (64 at most), 3 size of the history, 4 entries or publications between two trims,
-- 5 publications encoded, 6 milliseconds the entries live, milliseconds the state lives and generation, a space between them,
-- 7 (if given) 1 to renew both times, 2 to do so and take the epoch for a new one, if one is to be begun.
-- Returns the offset of the last publication; with the epoch before it if that is not the one given.
-- The common way through reads as few arguments as numbers as it can: each is a tenth of a microsecond.
local c, k, m, e, count = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[2]
@before
local n = c('HINCRBY', m, e, count)
if n <= 64 and n - count == 0 and c('HGET', m, ':c') ~= e then
  -- Nothing was published in this epoch: it is a candidate, or not the stream's any more.
  c('HDEL', m, e)
  @begin
  e = begin(k, m, ARGV[7] == '2' and e, string.match(ARGV[6], '%w*$'), '', '0')
  if not e then return redis.error_reply('STALE another epoch is to be begun') end
  n = c('HINCRBY', m, e, count)
end
local entry = '1p' .. e .. ':' .. n .. ':' .. ARGV[5]
local length = redis.pcall('RPUSH', k, entry)
if type(length) == 'table' then
  c('HINCRBY', m, e, -count)
  return length
end
c('@publish', k, entry)
if length == 1 or ARGV[7] and ARGV[7] ~= '' then
  local ttl, meta_ttl = string.match(ARGV[6], '^(%d+) (%d+)')
  c('PEXPIRE', k, ttl)
  if meta_ttl ~= '0' then c('PEXPIRE', m, meta_ttl) end
end
local trim
if count == '1' then trim = length - ARGV[3] - ARGV[4] > 0 else trim = n % ARGV[4] - count < 0 end
if trim and n - ARGV[3] > 0 then
  @after
  local first = after(k, n, n - ARGV[3])
  if -first < length then c('LTRIM', k, first, -1) end
end
@done
if e == ARGV[1] then return n end
return { e, n }
