-- The stream's epoch and top offset. A stream that does not exist begins with `candidate` as its epoch. One of another
-- generation goes on with `candidate` as its epoch, and remembers up to which offsets the eight epochs before mean the same,
-- the last first: `:p`. If one of them is known to have reached further (`seen_epoch`, `seen_top`), or there was one of which
-- these data know nothing, publications were lost: none is remembered, and other nodes are notified. Where a new epoch is needed,
-- nil without a candidate, and for a caller that is behind.
@behind
local function begin(k, m, candidate, generation, seen_epoch, seen_top)
  local state = c('HMGET', m, ':c', ':g', ':p')
  local current, before = state[1], state[3]
  if not current then
    if not candidate or is_behind(k, m, generation) then return nil end
    c('LTRIM', k, 1, 0)
    c('HSET', m, ':c', candidate, ':g', generation, candidate, 0)
    return candidate, '0', false
  end
  local top = c('HGET', m, current)
  local goes_on = state[2] == generation
  if not goes_on and is_behind(k, m, generation) then return nil end
  if not goes_on then
    local older = before and ' ' .. (string.match(before, '^' .. string.rep('%S+ ', 6) .. '%S+') or before) or ''
    before = current .. ':' .. top .. older
  end
  local known = before and (string.match(' ' .. before, ' ' .. seen_epoch .. ':(%d+)') or '0')
  if goes_on and seen_epoch == current then known = top end
  local lost = known and tonumber(seen_top) > tonumber(known)
  if goes_on and not lost then return current, top, before end
  if not candidate then return nil end
  c('HDEL', m, current)
  c('HSET', m, ':c', candidate, ':g', generation, candidate, top)
  if not lost then
    c('HSET', m, ':p', before)
    return candidate, top, before
  end
  c('HDEL', m, ':p')
  c('@publish', k, '1e' .. candidate .. ':' .. top .. ':')
  return candidate, top, false
end
