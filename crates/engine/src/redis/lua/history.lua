-- Part of a stream, which begins if there is none. KEYS: list, hash. ARGV: generation, candidate for the epoch, milliseconds
-- the state lives, offset beside the part or -1, number of entries at most or -1, 1 for newest first, size of the history.
-- Returns epoch, top, the positions of epochs before that mean the same, and entries, oldest first: what was asked for
-- is in them, perhaps among more.
local c, k, m = redis.call, KEYS[1], KEYS[2]
@begin
@after
local e, top, before = begin(k, m, ARGV[2], ARGV[1], '', '0')
if ARGV[3] ~= '0' then c('PEXPIRE', m, ARGV[3]) end
local n, since, limit = tonumber(top), tonumber(ARGV[4]), tonumber(ARGV[5])
local out = { e, top, before or '' }
local entries
if limit == 0 then
  entries = {}
elseif ARGV[6] == '1' then
  local last = -1
  if since >= 0 then last = after(k, n, since - 2) end
  if since > n + 1 or last == 0 then
    entries = {}
  else
    local first = 0
    if limit > 0 and last - limit + 1 >= -c('LLEN', k) then first = last - limit + 1 end
    entries = c('LRANGE', k, first, last)
  end
else
  if since < n - ARGV[7] then since = n - ARGV[7] end
  local first = after(k, n, since)
  if first == 0 then
    entries = {}
  else
    local last = -1
    if limit > 0 and first + limit - 1 < -1 then last = first + limit - 1 end
    entries = c('LRANGE', k, first, last)
  end
end
out[4] = entries
return out
