-- The stream's epoch and top offset. A stream that does not exist begins with `candidate` as its epoch. One of another
-- generation goes on with `candidate` as its epoch, and remembers up to which offset the epoch before means the same: `:p`.
-- If the epoch before is known to have reached further (`seen_epoch`, `seen_top`), publications were lost: it is not
-- remembered, and other nodes are notified. Without a candidate, nil where one is needed.
local function begin(k, m, candidate, generation, seen_epoch, seen_top)
  local current = c('HGET', m, ':c')
  if not current then
    if not candidate then return nil end
    c('LTRIM', k, 1, 0)
    c('HSET', m, ':c', candidate, ':g', generation, candidate, 0)
    return candidate, '0', false
  end
  local top = c('HGET', m, current)
  local before = c('HGET', m, ':p')
  local lost
  if c('HGET', m, ':g') ~= generation then
    lost = current == seen_epoch and tonumber(seen_top) > tonumber(top)
    before = current .. ':' .. top
  else
    lost = before and string.match(before, '^(%w+):') == seen_epoch
      and tonumber(seen_top) > tonumber(string.match(before, ':(%d+)$'))
    if not lost then return current, top, before end
  end
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
