-- The entries of a page, and the bytes of the next one that does not fit. ARGV: from 4 on as in `history.lua`.
local n, since, limit = tonumber(top), tonumber(ARGV[4]), tonumber(ARGV[5])
local first, last, way = 0, -1, 1
if ARGV[6] == '1' then
  way = -1
  if since >= 0 then last = after(k, n, since - 2) end
  if since <= n + 1 and last ~= 0 then
    first = -c('LLEN', k)
    if limit > 0 and last - limit + 1 > first then first = last - limit + 1 end
  end
else
  if since < n - ARGV[7] then since = n - ARGV[7] end
  first = after(k, n, since)
  if limit > 0 and first + limit - 1 < last then last = first + limit - 1 end
end
local entries, more, room, step = {}, 0, tonumber(ARGV[8]), 8
local at, stop = first, last
if way < 0 then at, stop = last, first end
while first < 0 and limit ~= 0 and more == 0 and (stop - at) * way >= 0 do
  local to = at + way * (step - 1)
  if (stop - to) * way < 0 then to = stop end
  local part = c('LRANGE', k, math.min(at, to), math.max(at, to))
  for i = 1, #part do
    local entry = part[way > 0 and i or #part + 1 - i]
    room = room - #entry
    if room < 0 then
      more = #entry
      break
    end
    entries[#entries + 1] = entry
  end
  at, step = to + way, 128
end
