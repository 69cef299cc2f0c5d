if ARGV[6] ~= '0' then c('HSET', meta, 'v', ARGV[6], 've', ARGV[7]) end
if KEYS[4] then
  c('HSET', KEYS[4], 'e', e, 's', n)
  c('PEXPIRE', KEYS[4], ARGV[5])
end
